"""The transactions of a partition in a server's memory: the newest blocks, and runs that were read from replicas for readers that lag behind (Waltz
Server, the transaction record cache).

One share of the server's transaction budget. Uncommitted blocks are never released. Once runs use more than a quarter they are released before the
newest blocks, because more readers are near the end than at any one place further back.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass

from waltz_log.core.formats.block import Block
from waltz_log.core.formats.columns import slice_block
from waltz_log.server.base.budget import Budget
from waltz_log.server.replication.block_window import BlockWindow, size_of

__all__ = ["PartitionMemory", "Run", "Runs"]


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive blocks. In a run of headers, `records` of each block holds sealed headers."""

    blocks: tuple[Block, ...]

    @property
    def first(self) -> int:
        return self.blocks[0].first_transaction_id

    @property
    def last(self) -> int:
        return self.blocks[-1].last_transaction_id

    @property
    def held_bytes(self) -> int:
        return sum(size_of(block) for block in self.blocks)

    def between(self, first: int, last: int) -> list[Block]:
        """What the run has of the range, whole records."""
        return cut(self.blocks, first, last)


def cut(blocks: tuple[Block, ...] | list[Block], first: int, last: int) -> list[Block]:
    return [
        slice_block(block, max(first, block.first_transaction_id), min(last, block.last_transaction_id))
        for block in blocks
        if block.first_transaction_id <= last and block.last_transaction_id >= first
    ]


class Runs:
    """Runs by their first id. The least recently used one is released first."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, Run] = OrderedDict()
        self._firsts: list[int] = []
        self.held_bytes = 0

    def find(self, transaction_id: int) -> Run | None:
        place = bisect_right(self._firsts, transaction_id)
        if not place:
            return None
        first = self._firsts[place - 1]
        run = self._runs[first]
        if run.last < transaction_id:
            return None
        self._runs.move_to_end(first)
        return run

    def add(self, run: Run) -> int:
        """Returns the bytes by which the memory grew. Of two runs with the same first id the longer is kept."""
        known = self._runs.get(run.first)
        if known is not None and known.last >= run.last:
            return 0
        if known is None:
            insort(self._firsts, run.first)
        grown = run.held_bytes - (0 if known is None else known.held_bytes)
        self._runs[run.first] = run
        self._runs.move_to_end(run.first)
        self.held_bytes += grown
        return grown

    def evict(self) -> int:
        if not self._runs:
            return 0
        first, run = self._runs.popitem(last=False)
        del self._firsts[bisect_right(self._firsts, first) - 1]
        self.held_bytes -= run.held_bytes
        return run.held_bytes


class PartitionMemory:
    """The partition memory of one store session; `close` it with that."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._committed = -1
        self.window = BlockWindow(-1)
        self.runs = Runs()
        self.held_bytes = 0
        self._closed = False
        budget.join(self)

    def begin(self, high_water_mark: int) -> None:
        """The log continues above the mark. Nothing was appended here before."""
        assert self.window.held_bytes == 0, "the window begins anew only where it is empty"
        self.window = BlockWindow(high_water_mark)
        self._committed = high_water_mark

    def append(self, block: Block) -> None:
        self.window.append(block)
        self._grew(size_of(block))

    def committed(self, transaction_id: int) -> None:
        """Blocks up to here may be released from now on."""
        self._committed = transaction_id
        self._budget.changed(0)

    def remember(self, run: Run) -> None:
        """Keeps a run that was read, because another reader may need it too."""
        if not self._closed:
            self._grew(self.runs.add(run))

    def _grew(self, difference: int) -> None:
        self.held_bytes += difference
        self._budget.changed(difference)

    def evict(self) -> int:
        if 4 * self.runs.held_bytes > self.held_bytes:
            return self.runs.evict()
        return self.window.evict(self._committed) or self.runs.evict()

    @property
    def share(self) -> int:
        return self._budget.share

    def close(self) -> None:
        """Releases everything, because the memory is no longer counted: a client that does not read keeps its old session referenced."""
        if not self._closed:
            self._closed = True
            self._budget.leave(self)
            self.window, self.runs = BlockWindow(self.window.last_transaction_id), Runs()
