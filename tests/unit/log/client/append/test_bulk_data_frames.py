"""Data frames as sources of bulk appends: by Arrow's C stream, whatever library they are of."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from waltz_log.client import Appended, WaltzClient
from waltz_log.errors import InvalidRequest
from waltz_log.testing.scripted_server import ScriptedCluster


class Frame:
    """A data frame of a library that exports views, as polars does."""

    def __init__(self, **columns: Any) -> None:
        self._table = pa.table(columns)

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._table.__arrow_c_stream__(schema)

    def __iter__(self) -> Any:
        return iter(self._table.column_names)


class Column:
    """One column of such a library."""

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return pa.chunked_array([["a", "b"]]).__arrow_c_stream__(schema)


FRAMES = {
    "bytes": pd.DataFrame({"data": [b"a", b"b"]}),
    "text": pd.DataFrame({"data": ["a", "b"]}),
    "a filtered frame, whose index is a column of its own": pd.DataFrame({"data": ["x", "a", "b"]}).iloc[1:].set_index(pd.Index([7, 9])),
    "views of text": Frame(data=pa.array(["a", "b"], pa.string_view())),
    "views of bytes": Frame(data=pa.array([b"a", b"b"], pa.binary_view())),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
async def test_a_data_frame_is_appended_by_its_column_data(frame: object, client: WaltzClient, cluster: ScriptedCluster) -> None:
    receipt = await client.append_bulk(0, frame)
    assert (receipt.appended, receipt.failed, cluster.logs[0].data()) == ([Appended(0, 2, 0)], [], [b"a", b"b"])


async def test_headers_of_any_whole_number_are_appended_if_they_fit(client: WaltzClient, cluster: ScriptedCluster) -> None:
    await client.append_bulk(0, pd.DataFrame({"data": [b"a", b"b"], "header": [-7, 2**31 - 1]}))
    assert [each.header for each in await client.fetch(0, [0, 1])] == [-7, 2**31 - 1]
    with pytest.raises(InvalidRequest, match="2147483648 not in range"):
        await client.append_bulk(0, pd.DataFrame({"data": [b"a"], "header": [2**31]}))
    assert len(cluster.logs[0].data()) == 2


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (pd.Series(["a"]), "cannot append a Series"),
        (pd.Series([b"a"]), "cannot append a Series"),
        ({"data": [b"a"]}, "cannot append a dict"),
        (Column(), "cannot append this Column"),
        (pd.DataFrame({"payload": [b"a"]}), "payload"),
        (pd.DataFrame({"data": [b"a"], "more": [1]}), "more"),
        (pd.DataFrame({"data": [1, 2]}), "data"),
        (pd.DataFrame({"data": [b"a", None]}), "null"),
        (pd.DataFrame({"data": [b"a"], "header": ["x"]}), "header"),
    ],
)
async def test_what_has_other_columns_is_refused_and_nothing_of_it_is_sent(
    source: object, reason: str, client: WaltzClient, cluster: ScriptedCluster
) -> None:
    for call in (client.append_bulk(0, source), _blocking(client, source)):
        with pytest.raises(InvalidRequest, match=reason):
            await call
    assert cluster.logs[0].data() == []


async def _blocking(client: WaltzClient, source: Any) -> None:
    """As the blocking client reads a source, in another thread."""
    from waltz_log.client.append.bulk_source import source_parts
    from waltz_log.client.append.data_frames import without_frames

    bulk = client.bulk(0)
    for part in await asyncio.to_thread(lambda: list(source_parts(without_frames(source)))):
        await bulk.enqueue(part)
