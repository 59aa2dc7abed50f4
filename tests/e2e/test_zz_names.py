import pytest

pytestmark = pytest.mark.timeout(1500)
import pytest
from pathlib import Path
from typing import Any
from waltz_delta import DeltaAppend, DeltaUpsert, DeltaHistory

KEY = "a9f9d1de-5f7c-4a4e-9d39-50d9bd5c4c11"
NAMES = [
    "a.b",
    "c d",
    "e`f",
    "g,h",
    "ü",
    "filePath",
    "rowIndexCol",
    "deletionVectorId",
    "_metadata",
    "_file_name_",
    "_row_id_",
    "_change_type",
    "t.x",
    "s",
    "newest",
    "living",
    "lowest",
    "won",
    "_row_index_",
    "condition_",
    "source_row_present",
    "target_row_present",
    "row_id",
    "__index",
    "a;b",
    "x=y",
    "A{b}",
    "_target_row_index_",
    "_commit_version",
    "_commit_timestamp",
]


@pytest.mark.parametrize("mode", ["append", "upsert", "history"])
def test_names(spark, tmp_path, mode):
    out = []
    for i, name in enumerate(NAMES):
        path = str(tmp_path / f"t{i}")
        props = {"delta.enableChangeDataFeed": "true"} if name.startswith(("_change", "_commit")) else {}
        mk = lambda: {
            "append": lambda: DeltaAppend(path, KEY, properties=props),
            "upsert": lambda: DeltaUpsert(path, KEY, ["key"], properties=props),
            "history": lambda: DeltaHistory(path, KEY, ["key"], properties=props),
        }[mode]()
        q = "`" + name.replace("`", "``") + "`"
        try:
            for b in range(2):
                rows = spark.createDataFrame([(0, b, "k", f"v{b}")], f"partition INT, transaction_id BIGINT, key STRING, {q} STRING")
                mk().write(rows)
            got = spark.read.format("delta").load(path).select(q).collect()
            out.append((name, "ok", len(got)))
        except Exception as e:
            out.append((name, type(e).__name__, str(e).split("\n")[0][:150]))
    for o in out:
        print(mode, o)


@pytest.mark.parametrize("mode", ["append", "upsert", "history"])
def test_paths(spark, tmp_path, mode):
    for name in ["back`tick", "sp ace", "um läut", "dot.ted", "per%cent", "a#b"]:
        path = str(tmp_path / name)
        mk = {
            "append": lambda: DeltaAppend(path, KEY, evolution="add_columns"),
            "upsert": lambda: DeltaUpsert(path, KEY, ["key"], evolution="add_columns"),
            "history": lambda: DeltaHistory(path, KEY, ["key"], evolution="add_columns"),
        }[mode]
        try:
            mk().write(spark.createDataFrame([(0, 0, "k", "v")], "partition INT, transaction_id BIGINT, key STRING, v STRING"))
            mk().write(spark.createDataFrame([(0, 1, "k", "v", 1)], "partition INT, transaction_id BIGINT, key STRING, v STRING, w INT"))
            print(mode, name, "ok", spark.read.format("delta").load(path).count())
        except Exception as e:
            print(mode, name, type(e).__name__, str(e).split("\n")[0][:200])
