"""Many runs at once, one process per core. Failed runs are returned with the command that replays them and the end of their trace."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from verification.simulation.run import run

__all__ = ["Failed", "Range", "run_range"]

TAIL_LINES = 40

SHOWN_MAX = 5
"""The number of failures that are reported in full; for the others, only the seed."""


@dataclass(frozen=True, slots=True)
class Failed:
    seed: int
    wrong: list[str]
    tail: str

    def __str__(self) -> str:
        return "\n".join(["", self.tail, *(f"  {each}" for each in self.wrong[:8]), f"replay: make sim SEED={self.seed}"])


@dataclass(frozen=True, slots=True)
class Range:
    seeds: int
    failed: list[Failed]
    attempts: int
    committed: int
    virtual_s: float
    cpu_s: float

    def __str__(self) -> str:
        reported = f"{self.seeds} seeds, {self.attempts} appends, {self.committed} committed, {self.virtual_s:.0f} s of virtual time"
        return f"{reported}, {self.cpu_s:.0f} s of one core: " + (
            "nothing wrong" if not self.failed else f"failed: {' '.join(str(failed.seed) for failed in self.failed)}"
        )


def _some(seeds: list[int]) -> Range:
    began = time.process_time()
    failed: list[Failed] = []
    attempts = committed = 0
    virtual_s = 0.0
    for seed in seeds:
        outcome = run(seed)
        attempts += outcome.attempts
        committed += outcome.committed
        virtual_s += outcome.ended_s
        if outcome.wrong:
            failed.append(Failed(seed, outcome.wrong, outcome.trace.tail(TAIL_LINES)))
    return Range(len(seeds), failed, attempts, committed, virtual_s, time.process_time() - began)


def _portions(seeds: list[int], size: int = 25) -> Iterator[list[int]]:
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]


def run_range(seeds: Iterable[int], jobs: int | None = None, reported: Callable[[Range], None] = lambda part: None) -> Range:
    """`reported` is called with each portion when it ends."""
    portions = list(_portions(list(seeds)))
    workers = jobs or os.cpu_count() or 1
    if workers == 1 or len(portions) == 1:
        parts = []
        for portion in portions:
            parts.append(_some(portion))
            reported(parts[-1])
    else:
        parts = []
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            for part in pool.imap(_some, portions):
                parts.append(part)
                reported(part)
    return Range(
        seeds=sum(part.seeds for part in parts),
        failed=[failed for part in parts for failed in part.failed],
        attempts=sum(part.attempts for part in parts),
        committed=sum(part.committed for part in parts),
        virtual_s=sum(part.virtual_s for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
    )
