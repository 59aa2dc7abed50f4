"""The log into Delta: appended exactly once by the table's marks beside Delta's own sink, and merged by key beside a MERGE that a user writes with
Delta alone; in a driver of its own.

Not named `delta`: spark-submit puts this folder on the path of the scripts in it, before the package of that name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.log import PARTITIONS
from benchmarks.measurement import Measurement
from benchmarks.setting import Workload
from benchmarks.spark import submit

__all__ = ["run"]

TIMES = 2
"""How often each sink lands the log."""


def run(cluster: str, directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    answer = submit("delta", cluster, directory, f"--batch={workload.batch}", script="delta_session.py")
    told = {**conditions, "spark": answer["spark"], "partitions": PARTITIONS, "log": "warm"}
    append, merge, appended = answer["append"], answer["merge"], answer["log_rows"]  # other benchmarks append to the log as well
    for name, rows in append["rows"].items():
        if rows != TIMES * appended:
            raise RuntimeError(f"a sink landed another number of rows than were appended: sink={name} got={rows} wanted={TIMES * appended}")
    if merge["table_rows"] != merge["keys"]:
        raise RuntimeError(f"updates of known keys changed the number of rows: got={merge['table_rows']} wanted={merge['keys']}")
    if merge["differing"]:
        raise RuntimeError(f"the sink and a MERGE of Delta alone came to other rows: differing={merge['differing']}")
    batches = {**told, "rows_per_batch": workload.batch, "rows": append["rows"]["ours"]}
    own = Measurement("delta.own_sink", append["rows"]["own"] / append["took_s"]["own"], "rows/s", batches)
    ours = Measurement("delta.append", append["rows"]["ours"] / append["took_s"]["ours"], "rows/s", batches)
    told_merge = {
        **told,
        "rows_per_batch": merge["rows_per_batch"],
        "table_rows": merge["table_rows"],
        "first_s": round(merge["first_s"], 1),
        "all": "updates",
    }
    own_merge, merged = (
        Measurement(name, merge["rows"] / merge["took_s"][way], "rows/s", told_merge)
        for name, way in (("delta.own_merge", "own"), ("delta.merge", "ours"))
    )
    return [
        own,
        ours.compared_with(own.value, f"Delta's own streaming sink, {own.value:,.0f} rows/s"),
        own_merge,
        merged.compared_with(own_merge.value, f"a MERGE written with Delta alone, {own_merge.value:,.0f} rows/s"),
    ]
