"""Reads transactions for pages: the newest, one by id, and those that a search matches. Reads from replicas, as Spark does, to spare the owners.

No read passes the high-water mark that the owner reports. While no owner answers, it is the highest one that the console has seen, because committed
transactions stay committed. If a replica does not answer, another one is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic

from waltz_log.console.reading.criteria import Criteria
from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.reading.sampling import Sample, Sampler
from waltz_log.core.formats.columns import offsets_array, verify_records
from waltz_log.core.formats.record_layout import SEALED_HEADER_BYTES
from waltz_log.core.formats.records import decode_record
from waltz_log.core.formats.sealed_headers import sealed_headers_array, verify_sealed_headers
from waltz_log.core.replica_status import ReplicaStatus
from waltz_log.errors import NotAllowed, NotCommittedYet, OutOfRange, Trimmed, Unavailable, WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.locating import Question, locate
from waltz_log.transport.methods import BOUND, READ

__all__ = ["Bounds", "Entry", "Found", "TransactionReader"]

CALL_TIMEOUT_S = 1.0
"""For one node. After it, a page shows what the other nodes report."""

READ_TIMEOUT_S = 5.0
"""For the data of one page."""

PAGE_BYTES_MAX = 8 * 1024 * 1024
"""Payloads that one page loads. Rows beyond it are shown without their data."""

MESSAGE_BYTES = 1024 * 1024
"""Target size of one message of a read."""

CHUNK_BYTES = 4 * 1024 * 1024
"""Target size of one read of a search."""

CHUNK_FIRST, CHUNK_MAX = 2_000, 200_000
"""Transactions of the first read of a search, and at most of any read."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The committed transactions of a partition: ids from `first` to `last`, none if `last` is below. `answered`: whether its
    owner reported this now."""

    first: int
    last: int
    session: int
    answered: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction. `data` is None if it was not loaded."""

    partition: int
    transaction_id: int
    time_ms: int
    header: int
    client_id: int
    generation: int
    sequence: int
    data: bytes | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """A page of a search or of a list. `cursor`: for each partition, the id below which it continues; empty at the end. `searched`: transactions
    compared; `problems`: partitions that could not be read, and why."""

    entries: tuple[Entry, ...]
    cursor: Mapping[int, int]
    searched: int
    left: int
    problems: Mapping[int, str]


class TransactionReader:
    def __init__(self, link: ClusterLink, sampler: Sampler) -> None:
        self._link = link
        self._sampler = sampler

    # ---- where ---------------------------------------------------------------------------------------------------------------------------------

    async def bounds(self, sample: Sample, partitions: Collection[int]) -> dict[int, Bounds]:
        """Bounds of each partition of which anything is known."""
        key = _key(sample)
        asked: dict[str, list[int]] = {}
        for each in sample.survey.partitions:
            if each.partition in partitions and each.address is not None:
                asked.setdefault(each.address, []).append(each.partition)
        answers = await asyncio.gather(*(self._bounds_at(address, numbers, key) for address, numbers in asked.items()))
        found = {bound.partition: bound for answer in answers for bound in answer}
        missing = set(partitions) - found.keys()
        if missing:
            found |= {bound.partition: bound for bound in await self._bounds_of_new_owners(missing, key)}
        history = self._sampler.history
        known: dict[int, Bounds] = {}
        for each in sample.survey.partitions:
            bound, seen, session = found.get(each.partition), history.mark(each.partition), history.session(each.partition)
            if bound is not None:
                known[each.partition] = Bounds(bound.first_transaction_id, bound.high_water_mark, bound.session, True)
            elif each.partition in missing and seen is not None and session is not None:
                known[each.partition] = Bounds(0, seen, session, False)
        return known

    async def _bounds_at(self, address: str, partitions: list[int], key: bytes) -> list[pb.Bound]:
        request = pb.BoundRequest(partitions=partitions, cluster_key=key)
        try:
            return list((await self._link.channel(address).call(BOUND, request, timeout_s=CALL_TIMEOUT_S)).bounds)
        except WaltzError:
            return []

    async def _bounds_of_new_owners(self, partitions: Collection[int], key: bytes) -> list[pb.Bound]:
        """After a change of owner, the sample still names the old one; the map of the cluster does not."""
        try:
            owners = await self._link.owners()
        except WaltzError:
            return []
        asked: dict[str, list[int]] = {}
        for partition in partitions:
            address = owners.address(partition)
            if address is not None:
                asked.setdefault(address, []).append(partition)
        answers = await asyncio.gather(*(self._bounds_at(address, numbers, key) for address, numbers in asked.items()))
        return [bound for answer in answers for bound in answer]

    def _replicas(self, sample: Sample, partition: int) -> list[str]:
        """Addresses, the replicas that most likely answer first. Live replicas are rotated by partition, to spread the reads."""
        state = sample.survey.partitions[partition]
        nodes = {each.name: each for each in sample.survey.storages}
        ranked = sorted(
            (each for each in state.replicas if each.name in nodes and nodes[each.name].address is not None),
            key=lambda each: (not each.status.follows and each.status is not ReplicaStatus.REPAIRING, not nodes[each.name].answers),
        )
        good = [each for each in ranked if each.status is ReplicaStatus.LIVE]
        rotated = good[partition % len(good) :] + good[: partition % len(good)] if good else []
        return [str(nodes[each.name].address) for each in (*rotated, *(each for each in ranked if each not in good))]

    # ---- reads ---------------------------------------------------------------------------------------------------------------------------------

    async def newest(self, sample: Sample, partitions: Sequence[int], count: int, before: Mapping[int, int] | None = None) -> Found:
        """The newest `count` transactions of all these partitions, newest first; below the ids of `before` where it names the partition."""
        bounds = await self.bounds(sample, partitions)
        problems = {each: "no owner answers, and nothing is known of it yet" for each in partitions if each not in bounds}
        lasts = {each: min(bound.last, (before or {}).get(each, bound.last + 1) - 1) for each, bound in bounds.items()}
        wanted = {each: (max(bounds[each].first, last - count + 1), last) for each, last in lasts.items() if last >= bounds[each].first}
        heads = await asyncio.gather(
            *(self._entries(sample, each, bounds[each].session, first, last, headers_only=True) for each, (first, last) in wanted.items())
        )
        listed: list[Entry] = []
        for each, head in zip(wanted, heads, strict=True):
            if isinstance(head, str):
                problems[each] = head
            else:
                listed += head
        listed.sort(key=lambda entry: (entry.time_ms, entry.transaction_id), reverse=True)
        chosen = await self._with_data(sample, bounds, listed[:count])
        cursor = {each: last + 1 for each, (_, last) in wanted.items() if each not in problems}
        for entry in chosen:
            cursor[entry.partition] = min(cursor[entry.partition], entry.transaction_id)
        left = sum(max(0, below - bounds[each].first) for each, below in cursor.items())
        return Found(tuple(chosen), cursor if left else {}, 0, left, problems)

    async def _with_data(self, sample: Sample, bounds: Mapping[int, Bounds], chosen: Sequence[Entry]) -> list[Entry]:
        """The entries with their data, up to the bytes that one page loads."""
        ids: dict[int, list[int]] = {}
        room = PAGE_BYTES_MAX
        for entry in chosen:
            room -= entry.bytes
            if room >= 0:
                ids.setdefault(entry.partition, []).append(entry.transaction_id)
        reads = await asyncio.gather(*(self._entries(sample, each, bounds[each].session, min(some), max(some)) for each, some in ids.items()))
        loaded = {(entry.partition, entry.transaction_id): entry for read in reads if not isinstance(read, str) for entry in read}
        return [loaded.get((entry.partition, entry.transaction_id), entry) for entry in chosen]

    async def one(self, sample: Sample, partition: int, transaction_id: int) -> Entry:
        """Raises `NotCommittedYet`, `Trimmed`, `NotAllowed`, and `Unavailable` if no replica returns it."""
        bound = (await self.bounds(sample, [partition])).get(partition)
        if bound is None:
            raise Unavailable(reason=f"no owner answers, and nothing is known of the partition yet: partition={partition}")
        if transaction_id > bound.last:
            raise NotCommittedYet(partition=partition, asked=transaction_id, first=bound.first, last=bound.last)
        if transaction_id < bound.first:
            raise Trimmed(partition=partition, asked=transaction_id, first=bound.first, last=bound.last)
        entries = await self._entries(sample, partition, bound.session, transaction_id, transaction_id)
        if isinstance(entries, str) or not entries:
            raise Unavailable(reason=f"no replica returned the transaction: partition={partition} transaction_id={transaction_id} {entries or ''}")
        return entries[0]

    async def beginning(self, sample: Sample, partition: int, session: int, first: int, last: int, bytes_max: int) -> list[Entry] | str:
        """Transactions from the beginning of a range, by increasing id: about `bytes_max`, at least one. A text says why no replica returned any."""
        return await self._entries(sample, partition, session, first, last, bytes_max=bytes_max)

    async def at_time(self, sample: Sample, partitions: Sequence[int], time_ms: int) -> dict[int, int]:
        """By partition: the first id that was appended after `time_ms`. Raises `Unavailable`."""
        bounds = await self.bounds(sample, partitions)
        questions = {each: Question(bound.session, bound.last, times_ms=(time_ms + 1,)) for each, bound in bounds.items()}
        addresses = {each: self._replicas(sample, each) for each in questions}
        found = await locate(self._link.channel, addresses, _key(sample), questions, 2 * CALL_TIMEOUT_S)
        return {each: place.positions[0] for each, place in found.items()}

    async def _entries(
        self, sample: Sample, partition: int, session: int, first: int, last: int, *, headers_only: bool = False, bytes_max: int = 0
    ) -> list[Entry] | str:
        """Transactions of a range by increasing id; fewer if a replica holds fewer, or if `bytes_max` is not 0 and reached. Text: why no replica
        returned any."""
        entries: list[Entry] = []
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                read = self._blocks(sample, partition, session, first, last, headers_only=headers_only, bytes_max=bytes_max)
                async with aclosing(read) as blocks:
                    async for block in blocks:
                        entries += _headers(block, partition) if headers_only else _records(block, partition)
        except TimeoutError:
            return f"no replica returned it within {READ_TIMEOUT_S:g} s"
        except NotAllowed as error:
            return str(error)
        except WaltzError as error:
            return entries or str(error)
        return entries

    async def _blocks(
        self, sample: Sample, partition: int, session: int, first: int, last: int, *, headers_only: bool = False, bytes_max: int = 0
    ) -> AsyncGenerator[pb.Block, None]:
        """From the first replica that answers; another one continues where it ends. Ends after about `bytes_max` if it is not 0. Raises the last
        replica's error if none returns anything more."""
        begin = first
        last_error: WaltzError = Unavailable(reason="no replica is registered")
        for address in self._replicas(sample, partition):
            request = pb.ReadRequest(
                cluster_key=_key(sample),
                partition=partition,
                session=session,
                first_transaction_id=first,
                last_transaction_id=last,
                max_bytes=bytes_max or MESSAGE_BYTES,
                runs_max=1 if bytes_max else 0,
                headers_only=headers_only,
                principal=self._link.principal,
            )
            stream = self._link.channel(address).read(READ, request)
            try:
                while True:
                    async with asyncio.timeout(2 * CALL_TIMEOUT_S):
                        answer: pb.ReadResponse | None = await stream.receive()
                    if answer is None:
                        break
                    for block in answer.blocks:
                        _expect_whole(address, partition, block, headers_only=headers_only)
                        yield block
                        first = block.first_transaction_id + _count(block, headers_only=headers_only)
            except NotAllowed:
                raise
            except OutOfRange as error:
                last_error = error
            except (WaltzError, TimeoutError) as error:
                last_error = error if isinstance(error, WaltzError) else Unavailable(reason=f"{address} does not answer")
            finally:
                await stream.cancel()
            if first > last or (bytes_max and first > begin):
                return
        raise last_error

    # ---- search --------------------------------------------------------------------------------------------------------------------------------

    async def search(
        self, sample: Sample, partitions: Sequence[int], criteria: Criteria, count: int, before: Mapping[int, int], budget_s: float
    ) -> Found:
        """Compares transactions, the newest of each partition first, until `count` match or `budget_s` has passed. Then `cursor` says where to
        continue."""
        until = monotonic() + budget_s
        bounds = await self.bounds(sample, partitions)
        problems = {each: "no owner answers, and nothing is known of it yet" for each in partitions if each not in bounds}
        cursor = {each: min(bound.last + 1, before.get(each, bound.last + 1)) for each, bound in bounds.items() if not before or each in before}
        spans = dict.fromkeys(cursor, CHUNK_FIRST)
        entries: list[Entry] = []
        searched = 0
        while len(entries) < count and monotonic() < until:
            unfinished = [each for each in partitions if each in cursor and cursor[each] > bounds[each].first]
            if not unfinished:
                break
            for each in unfinished:
                last = cursor[each] - 1
                first = max(bounds[each].first, last - spans[each] + 1)
                try:
                    found, size = await self._matching(sample, each, bounds[each].session, first, last, criteria)
                except WaltzError as error:
                    problems[each] = str(error)
                    del cursor[each]
                    continue
                room = count - len(entries)
                if len(found) > room:  # the next page goes on below the last one that is shown
                    found, first = found[-room:], found[-room].transaction_id
                entries += reversed(found)
                searched += last - first + 1
                cursor[each] = first
                spans[each] = min(CHUNK_MAX, max(1, int(spans[each] * min(4.0, CHUNK_BYTES / max(1, size)))))
                if len(entries) >= count or monotonic() >= until:
                    break
        left = {each: below - bounds[each].first for each, below in cursor.items() if below > bounds[each].first}
        return Found(tuple(entries), {each: cursor[each] for each in left}, searched, sum(left.values()), problems)

    async def _matching(self, sample: Sample, partition: int, session: int, first: int, last: int, criteria: Criteria) -> tuple[list[Entry], int]:
        """The matching entries by increasing id, and the number of bytes that were compared."""
        found: list[Entry] = []
        size = 0
        async with aclosing(self._blocks(sample, partition, session, first, last)) as blocks:
            async for block in blocks:
                size += len(block.records)
                positions = criteria.matches(block.lengths, block.records)
                if positions:
                    offsets = offsets_array(block.lengths).tolist()
                    found += [_entry(block, partition, offsets[at]) for at in positions]
        return found, size


def _key(sample: Sample) -> bytes:
    return bytes.fromhex(sample.survey.key.replace("-", ""))


def _expect_whole(address: str, partition: int, block: pb.Block, *, headers_only: bool) -> None:
    """Raises `CorruptData` for a block that changed on its way from a replica."""
    first, where = block.first_transaction_id, f"block from {address}"
    if headers_only:
        verify_sealed_headers(block.records, first_transaction_id=first, partition=partition, where=where)
    else:
        verify_records(block.records, block.lengths, first_transaction_id=first, partition=partition, where=where)


def _count(block: pb.Block, *, headers_only: bool) -> int:
    return len(block.records) // SEALED_HEADER_BYTES if headers_only else len(block.lengths) // 4


def _entry(block: pb.Block, partition: int, offset: int) -> Entry:
    """Raises `CorruptData`."""
    record, _ = decode_record(block.records, offset)
    return Entry(
        partition,
        record.transaction_id,
        block.append_time_ms,
        record.header,
        record.client_id,
        record.generation,
        record.sequence,
        record.data,
        len(record.data),
    )


def _records(block: pb.Block, partition: int) -> list[Entry]:
    return [_entry(block, partition, offset) for offset in offsets_array(block.lengths).tolist()[:-1]]


def _headers(block: pb.Block, partition: int) -> list[Entry]:
    rows = sealed_headers_array(block.records).tolist()
    return [
        Entry(partition, transaction_id, block.append_time_ms, header, client_id, generation, sequence, None, length)
        for transaction_id, client_id, generation, _, sequence, header, length, *_ in rows
    ]
