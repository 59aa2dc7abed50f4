"""The rows of one output of a batch, made by tasks where they can, otherwise by Spark. And the transactions that are no rows: how many do not decode,
violate a constraint, or have no route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from waltz_delta.base import internal
from waltz_delta.base.direct_rows import DirectRows
from waltz_delta.base.table_transaction import TableTransaction
from waltz_delta.decode.decode import PROBLEM
from waltz_delta.decode.transactions import Transactions
from waltz_delta.landing.constrained import ConstrainedOutput, Judged
from waltz_delta.landing.output_decoder import BAD, OutputDecoder
from waltz_delta.marks.batch import Staged

__all__ = ["OutputRows", "Prepared"]


@dataclass(slots=True)
class Prepared:
    """A batch staged for one table. `raw`: the transactions that the table lacks; the dead letters of the others were written before. `settled`: the
    same, or decoded and held (`OutputDecoder.settled`). `bad`: how many do not decode, None if that is not known. `violated`: how many decode, and
    violate a constraint of the table. `judged`: the decoded rows, if a constraint applies to them."""

    staged: Staged
    raw: Transactions
    settled: Transactions | DataFrame
    judged: Judged | None
    bad: int | None
    violated: int | None
    unrouted: int | None


class OutputRows:
    """`Rows` of a batch. `watch`: adds `PROBLEM` to transactions, where no route accepts one; None if they do not count here. `held` releases what is
    held."""

    def __init__(
        self,
        decoder: OutputDecoder,
        constrained: ConstrainedOutput,
        batch: Transactions,
        watch: Callable[[DataFrame], DataFrame] | None,
        held: ExitStack,
    ) -> None:
        self._decoder, self._constrained, self._watch, self._held = decoder, constrained, watch, held
        self._counts, self._violations, self._unrouted = Observation(), Observation(), Observation()
        self._counted = decoder.output.decode.format != "bytes"
        self._batch = self._raw = batch
        self._settled: DataFrame | None = None
        self._judged: Judged | None = None
        self._direct: DirectRows | None = None

    def frame(self, marks: Mapping[int, int], table: TableTransaction) -> DataFrame:
        self._direct = None
        raw = self._raw = self._batch.above(marks)
        if self._watch is not None:
            raw = Transactions.of(self._watch(raw.rows()).observe(self._unrouted, f.count(PROBLEM).alias(BAD)).drop(PROBLEM))
        self._settled = self._decoder.settled(raw)
        if self._settled is not None:
            self._held.callback(internal.release_held_rows, self._settled)
        good = self._decoder.good(raw if self._settled is None else self._settled, self._counts if self._counted else None)
        self._judged = self._constrained.judged(good, table)
        if self._judged is None:
            return good
        self._held.callback(self._judged.release)
        return self._judged.good(self._violations)

    def direct(self, marks: Mapping[int, int], table: TableTransaction) -> DirectRows | None:
        if self._watch is not None or self._constrained.rules(table):
            return None
        self._raw = self._batch.above(marks)
        self._direct = self._decoder.direct(self._raw)
        return self._direct

    def prepared(self, staged: Staged) -> Prepared:
        """After a job has read the rows."""
        if self._direct is not None and self._direct.undecoded is not None:
            return Prepared(staged, self._raw, self._raw, None, self._direct.undecoded, 0, 0)
        settled = self._raw if self._settled is None else self._settled
        bad = _count(self._counts) if self._counted else 0
        violated = 0 if self._judged is None else _count(self._violations)
        return Prepared(staged, self._raw, settled, self._judged, bad, violated, 0 if self._watch is None else _count(self._unrouted))


def _count(observation: Observation) -> int | None:
    found = internal.observed(observation)
    return None if found is None else found[BAD]
