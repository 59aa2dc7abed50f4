"""Short lives of a storage node, crashed in every way a short effort finds; `make crash` goes through all of them (verification/crashes/crashes.py).

Acknowledged is there; what was not acknowledged is there whole or not at all; fences and marks never go back; the partition accepts the next append.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from verification.crashes.crashes import FULL, SHORT, CrashFound, Effort, crash_points, enumerate_crashes, survivors
from verification.crashes.storage_crashes import SCENARIOS, crash, main
from verification.crashes.storage_model import KEY, FixedClock, StorageLife, append, block_of, node_on, read_all, silent_logs
from waltz_log.storage import StorageNode
from waltz_log.testing.disk import Operation, SimulatedDisk


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_logs():
        yield


SLOW = ("few-files", "preallocated-memory")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SCENARIOS])
async def test_a_node_comes_back_from_every_crash_with_what_it_acknowledged(name: str) -> None:
    tally = await crash(name, SHORT)
    assert tally.points > 20
    assert tally.survivors > tally.checked > 5 * tally.points // 4


async def test_every_torn_prefix_of_an_unsynced_append_opens() -> None:
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, 1)
    node = node_on(disk)
    await node.open(KEY)
    store = await node.partition(0)
    await store.open_session(1)
    there = block_of(0, 0, [3, 4], salt=1)
    await append(store, 1, [there])
    points: list[SimulatedDisk] = []

    def before(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.endswith(".seg") and not points:
            points.append(disk.fork())

    disk.before = before
    torn = block_of(0, 2, [5, 0, 6], salt=1)
    await append(store, 1, [torn])
    (unsynced,) = points
    write = max(unsynced.pending(), key=lambda change: change.size)
    assert write.size == len(torn.records)
    for kept in range(write.size + 1):
        fates = [kept if change == write else 0 for change in unsynced.pending()]
        again = node_on(unsynced.survivor(fates))
        await again.open(KEY)
        found = await again.partition(0)
        whole = (kept >= 45) + (kept >= 85) + (kept >= 131)
        assert found.last_id == 1 + whole
        records = b"".join(await read_all(found, 1, 0, found.last_id))
        assert records == (there.records + torn.records)[: len(there.records) + [0, 45, 85, 131][whole]]


# ---- the enumeration itself ----------------------------------------------------------------------------------------------------------------------


class Note:
    """Writes a file in two parts and replaces it, without a sync where one is left out."""

    def __init__(self, *left_out: str) -> None:
        self.left_out = left_out
        self.done = False

    async def prepare(self, disk: SimulatedDisk) -> None:
        return

    async def run(self, disk: SimulatedDisk) -> None:
        file = disk.open("note.new", "create")
        file.write(0, b"hello ")
        file.write(6, b"world")
        if "sync" not in self.left_out:
            file.sync()
        disk.rename("note.new", "note")
        if "sync_directory" not in self.left_out:
            disk.sync_directory("")
        self.done = True

    def observe(self) -> bool:
        return self.done

    async def recover(self, disk: SimulatedDisk) -> None:
        disk.sync_directory("")


async def whole_or_nothing(disk: SimulatedDisk, done: bool) -> None:
    assert disk.exists("note") or not done, "the note is gone"
    assert not disk.exists("note") or disk.content("note") == b"hello world", "half a note"


async def test_the_enumeration_finds_each_sync_that_is_left_out_and_names_the_crash_that_shows_it() -> None:
    tally = await enumerate_crashes("note", Note, whole_or_nothing, FULL)
    assert tally.points == 7
    for left_out, what in (("sync", "half a note"), ("sync_directory", "the note is gone")):
        with pytest.raises(CrashFound, match=what) as caught:
            await enumerate_crashes("note", partial(Note, left_out), whole_or_nothing, FULL)
        name, *numbers = caught.value.place.split(":")
        assert f"make crash ONLY={caught.value.place}" in str(caught.value)
        with pytest.raises(CrashFound) as again:
            await enumerate_crashes(name, partial(Note, left_out), whole_or_nothing, FULL, tuple(map(int, numbers)))
        assert again.value.place == caught.value.place, "the place names the crash"
        correct = await enumerate_crashes(name, Note, whole_or_nothing, FULL, tuple(map(int, numbers)))
        assert correct.checked <= 1


async def test_every_prefix_of_the_last_write_and_every_subset_of_the_others_is_among_the_survivors() -> None:
    disk = SimulatedDisk()
    disk.open("a", "create")
    disk.sync_directory("")
    file = disk.open("a", "write")

    async def run(disk: SimulatedDisk) -> None:
        file.write(0, b"ab")
        file.write(2, b"cde")

    points = await crash_points(disk, run, lambda: None)
    assert [point.last for point in points] == [None, Operation("write", "a"), Operation("write", "a")]
    found = {survivor.content("a") for survivor in survivors(points[-1], Effort("", subsets_of=2, drawn=0, torn_every=1, recovery_every=0))}
    assert found == {b"", b"ab", b"\0\0cde", b"abcde", b"\0\0c", b"\0\0cd", b"abc", b"abcd"}


async def test_a_recovery_is_crashed_as_well() -> None:
    class Recovering(Note):
        async def recover(self, disk: SimulatedDisk) -> None:
            if disk.exists("note"):
                disk.remove("note")
                await self.run(disk)

    effort = Effort("", subsets_of=3, drawn=0, torn_every=1, recovery_every=1)
    with pytest.raises(CrashFound, match="the note is gone") as caught:
        await enumerate_crashes("note", Recovering, whole_or_nothing, effort)
    name, *numbers = caught.value.place.split(":")
    assert len(numbers) == 4
    with pytest.raises(CrashFound) as again:
        await enumerate_crashes(name, Recovering, whole_or_nothing, effort, tuple(map(int, numbers)))
    assert again.value.place == caught.value.place


def test_the_command_goes_through_one_scenario_and_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--short", "append"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("append ")
    assert "crash points" in line
    with pytest.raises(SystemExit):
        main(["nothing"])


def test_the_command_names_the_crash_that_it_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(StorageLife):
        async def steps(self) -> None:
            self.create(1)
            await self.open()
            self.expected = type(self.expected)(self.expected.counts, self.expected.start + 1, self.expected.partitions)

    monkeypatch.setitem(SCENARIOS, "forgetful", Forgetful)
    assert main(["--short", "forgetful"]) == 1
    assert "make crash SHORT=1 ONLY=forgetful:" in capsys.readouterr().err
