"""What pyarrow may assume of each file of a table, so that it skips files that hold no row of a filter, and no others.

`deltalake` 1.6 says of a column without bounds that its values are `>= null`. pyarrow concludes that no row of the file meets any filter on that
column, and finds nothing, without an error. Files of both engines have such columns, for example of BOOLEAN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import and_
from typing import Any  # pyarrow has no types
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as _pc
import pyarrow.dataset as ds

__all__ = ["with_true_guarantees"]

pc: Any = _pc


def with_true_guarantees(dataset: Any, files: Iterable[Mapping[str, Any]], partition_by: Iterable[str]) -> Any:
    """The dataset of a table, of whose files only what `files` says is assumed. `files`: a row for each, as `get_add_actions(flatten=True)` gives
    them."""
    described = {unquote(str(file["path"])): file for file in files}
    layout = frozenset(partition_by)
    kinds = {field.name: field.type for field in dataset.schema if "." not in field.name and field.name not in layout and _is_bounded(field.type)}
    fragments = []
    for fragment in dataset.get_fragments():
        file = described.get(unquote(fragment.path), {})
        keys = {name: value for name, value in ds.get_partition_keys(fragment.partition_expression).items() if name in layout}
        fragments.append(
            dataset.format.make_fragment(
                fragment.path,
                filesystem=dataset.filesystem,
                partition_expression=reduce(and_, [*_keys(dataset.schema, keys), *_bounds(kinds, file)], pc.scalar(True)),
                file_size=file.get("size_bytes"),
            )
        )
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def _keys(schema: Any, keys: Mapping[str, Any]) -> Iterable[Any]:
    for name, value in keys.items():
        yield pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value, schema.field(name).type)


def _bounds(kinds: Mapping[str, Any], file: Mapping[str, Any]) -> Iterable[Any]:
    for name, kind in kinds.items():
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        if low is not None and high is not None:
            within = (pc.field(name) >= pa.scalar(low, kind)) & (pc.field(name) <= pa.scalar(high, kind))
            yield within if file.get(f"null_count.{name}") == 0 else within | pc.field(name).is_null()


def _is_bounded(kind: Any) -> bool:
    """Types whose bounds are exact in every log. Those of times can be cut to milliseconds."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_date32(kind))
