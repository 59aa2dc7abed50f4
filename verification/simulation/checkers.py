"""The invariants, each a function from the evidence of a run to what is wrong with it. Nothing here knows how the run was made.

The numbers are those of the list of invariants in `docs/internals/simulator.md`, which lists for each checker which planted bug it catches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeAlias

from verification.simulation.fault_checkers import FAULT_CHECKERS
from verification.simulation.history import Attempt, Evidence, number_of
from verification.simulation.kept_checkers import KEPT_CHECKERS
from verification.simulation.lock_checkers import LOCK_CHECKERS
from verification.simulation.quotas_seen import quotas_count_accepted_work_alone
from verification.simulation.real_time import out_of_real_time
from verification.simulation.refill_checkers import REFILL_CHECKERS
from verification.simulation.restored import RESTORED
from verification.simulation.stored_records import differences
from waltz_log.client import Transaction
from waltz_log.core.metadata import ASSIGNMENT, Assignment, PartitionMetadata
from waltz_log.core.recovery import closed_at, majority

__all__ = ["CHECKERS", "check", "judge_exactly"]

Checker: TypeAlias = Callable[[Evidence], Iterable[str]]

ANSWER_LATE_S = 0.25
"""How much later than its deadline an answer may come. Timers are exact here, but a process may be stopped when a deadline passes."""


def ids_are_dense(evidence: Evidence) -> Iterator[str]:
    """1: ids are dense from 0."""
    for partition, log in evidence.logs.items():
        for place, transaction in enumerate(log):
            if transaction.transaction_id != place:
                yield f"id {transaction.transaction_id} in place {place}: partition={partition}"
                break


def one_id_one_content(evidence: Evidence) -> Iterator[str]:
    """1, 2, 13: whatever any reader received under an id is what the log finally holds under it."""
    for seen in evidence.history.seen:
        if seen.partition not in evidence.logs:
            continue  # of a topic that is trimmed: what was read of it is judged in `kept_checkers`
        log = evidence.logs[seen.partition]
        for transaction in seen.transactions:
            at = transaction.transaction_id
            if at >= len(log):
                yield f"{seen.reader} saw {at} at {seen.at_s:.3f}, the log ends at {len(log) - 1}: partition={seen.partition}"
                break
            if _identity(transaction, with_data=seen.with_data) != _identity(log[at], with_data=seen.with_data):
                yield f"{seen.reader} saw {transaction!r:.150} at {seen.at_s:.3f}, the log holds {log[at]!r:.150}: partition={seen.partition}"
                break


def _identity(transaction: Transaction, *, with_data: bool) -> tuple[object, ...]:
    # Not the append time: a node syncs it a second later than the transaction, and a crash sets it back to that of an earlier block.
    named = (transaction.client_id, transaction.generation, transaction.sequence, transaction.header)
    return (*named, transaction.data) if with_data else named


def acknowledged_is_in_the_log(evidence: Evidence) -> Iterator[str]:
    """2: an acknowledged append is in the log, under the id in the receipt. If its topic acknowledges from memory, it may be lost with a machine that
    died before the sync was due; then no replica has it."""
    present = _numbers(evidence.logs)
    for attempt in evidence.history.attempts:
        if attempt.number not in present and evidence.may_be_lost(attempt):
            continue
        if attempt.in_log and attempt.partition in evidence.logs:
            log, at = evidence.logs[attempt.partition], attempt.transaction_id
            if at is None or at >= len(log) or number_of(log[at].data) != attempt.number:
                held = None if at is None or at >= len(log) else number_of(log[at].data)
                yield f"attempt {attempt.number} was committed as {at}, where the log holds {held}: partition={attempt.partition} log={len(log)}"


def rejected_is_not_in_the_log(evidence: Evidence) -> Iterator[str]:
    """3: an append that was reported as rejected, not appended or absent is never in the log."""
    present = _numbers(evidence.logs)
    for attempt in evidence.history.attempts:
        if attempt.in_log is False and attempt.number in present:
            yield f"attempt {attempt.number} is in the log, told {attempt.outcome} / {attempt.resolved}: partition={attempt.partition}"


def nothing_is_in_the_log_twice(evidence: Evidence) -> Iterator[str]:
    """3, 4: an append is in the log at most once, and so is a request id. The log holds nothing that was not sent."""
    for partition, log in evidence.logs.items():
        for number, count in Counter(number_of(transaction.data) for transaction in log).items():
            if count > 1:
                yield f"attempt {number} is in the log {count} times: partition={partition}"
            if not 0 <= number < len(evidence.history.attempts) or evidence.history.attempts[number].partition != partition:
                yield f"attempt {number} was never made here: partition={partition}"
        for request, count in Counter((transaction.client_id, transaction.sequence) for transaction in log).items():
            if count > 1:
                yield f"request {request} is in the log {count} times: partition={partition}"


def judge_exactly(log: Iterable[Transaction], attempts: list[Attempt]) -> Iterator[str]:
    """Every transaction judged again, in the order of the log, with an exact table of lock names: a proof that the log is serializable."""
    writers: dict[str, int] = {}
    for transaction in log:
        attempt = attempts[number_of(transaction.data)]
        if attempt.mark is not None:
            if attempt.mark >= transaction.transaction_id:
                yield f"{transaction.transaction_id} was appended with mark {attempt.mark}, which the log had not reached"
            for name in sorted(attempt.checked):
                if writers.get(name, -1) > attempt.mark:
                    yield f"{transaction.transaction_id} checked {name} as of {attempt.mark}, which {writers[name]} wrote"
        for name in (*attempt.write, *attempt.append):
            writers[name] = transaction.transaction_id


def locks_are_serializable(evidence: Evidence) -> Iterator[str]:
    """5: no transaction in the log checked a lock that was written above its client's mark."""
    for partition, log in evidence.logs.items():
        yield from (f"{found}: partition={partition}" for found in judge_exactly(log, evidence.history.attempts))


def counts_have_no_lost_update(evidence: Evidence) -> Iterator[str]:
    """5, seen by an application: counters under locks count by one."""
    for partition, log in evidence.logs.items():
        counts: dict[str, int] = defaultdict(int)
        for transaction in log:
            reported = transaction.data.split(b"|")[1].decode()
            if reported:
                key, _, count = reported.partition("=")
                counts[key] += 1
                if int(count) != counts[key]:
                    yield f"lost update of {key} in {transaction.transaction_id}: count={count} expected={counts[key]} partition={partition}"
                    counts[key] = int(count)


def acknowledged_order_is_real_time(evidence: Evidence) -> Iterator[str]:
    """7: what was acknowledged before another append began has the lower id."""
    present = _numbers(evidence.logs)
    for partition in evidence.logs:
        reported = [attempt for attempt in evidence.history.attempts if attempt.partition == partition and attempt.outcome == "committed"]
        reported = [attempt for attempt in reported if attempt.number in present or not evidence.may_be_lost(attempt)]
        yield from (f"{found}: partition={partition}" for found in out_of_real_time(reported))


def no_reader_passes_the_majority(evidence: Evidence) -> Iterator[str]:
    """8, 6: whatever a reader saw or learned to be committed, also as the winner over an append, was on disk at a majority by then. Whatever an
    appender learned to be received had been received by a majority."""
    reached: dict[int, dict[str, int]] = defaultdict(dict)
    received: dict[int, dict[str, int]] = defaultdict(dict)
    events: list[tuple[float, int, int, str, int]] = [
        (each.at_s, 0, each.partition, each.storage, each.last) for each in evidence.history.acknowledgments
    ]
    events += [(each.at_s, -1, each.partition, each.storage, max(each.last, each.received)) for each in evidence.history.acknowledgments]
    events += [(each.at_s, 1, each.partition, each.reader, each.transactions[-1].transaction_id) for each in evidence.history.seen]
    events += [(each.at_s, 1, each.partition, each.client, each.mark) for each in evidence.history.marks]
    events += [
        (each.ended_s, 2 if each.in_memory else 1, each.partition, each.client, each.transaction_id)
        for each in evidence.history.attempts
        if each.outcome == "committed" and each.ended_s is not None and each.transaction_id is not None
    ]
    events += [
        (each.ended_s, 1, each.partition, each.client, each.winner)
        for each in evidence.history.attempts
        if each.outcome == "rejected" and each.ended_s is not None and each.winner is not None
    ]
    complained = 0
    for at_s, kind, partition, who, last in sorted(events):
        if kind <= 0:
            table = reached[partition] if kind == 0 else received[partition]
            table[who] = max(last, table.get(who, -1))
            continue
        holders = sum(1 for other in (reached if kind == 1 else received)[partition].values() if other >= last)
        if holders < majority(evidence.replicas_assigned[partition]) and last >= 0 and complained < 3:
            complained += 1
            yield f"{who} was told of {last} at {at_s:.3f}, when {holders} replicas had acknowledged it: partition={partition}"


def marks_never_fall(evidence: Evidence) -> Iterator[str]:
    """8: the committed mark that one client reads never falls."""
    newest: dict[tuple[str, int], int] = {}
    for seen in evidence.history.marks:
        key = (seen.client, seen.partition)
        if seen.mark < newest.get(key, -1):
            yield f"{seen.client} was told mark {seen.mark} at {seen.at_s:.3f}, after {newest[key]}: partition={seen.partition}"
        newest[key] = max(seen.mark, newest.get(key, -1))


def streams_are_contiguous(evidence: Evidence) -> Iterator[str]:
    """9: a feed has no gap, no repeat and no other order, over any change of owner."""
    position: dict[int, int] = {}
    for seen in evidence.history.seen:
        expected = position.get(seen.stream, seen.after) + 1
        for transaction in seen.transactions:
            if transaction.transaction_id != expected:
                yield f"{seen.reader} got {transaction.transaction_id} where {expected} was next: partition={seen.partition}"
                break
            expected += 1
        position[seen.stream] = expected - 1


def generations_never_fall(evidence: Evidence) -> Iterator[str]:
    """10: nothing of an older generation lands after a newer one began; append times never go back, where they are kept."""
    for partition, log in evidence.logs.items():
        for before, after in pairwise(log):
            if after.generation < before.generation:
                yield f"generation {after.generation} after {before.generation} at {after.transaction_id}: partition={partition}"
            if after.timestamp_ms < before.timestamp_ms and evidence.times_kept:
                yield f"append time goes back at {after.transaction_id}: partition={partition}"


def replicas_are_identical(evidence: Evidence) -> Iterator[str]:
    """11, 13: healed and quiet, every replica serves the same bytes, and they are the records of the log as readers are given it."""
    for partition, stored in evidence.replicas.items():
        errors = [reported for reported in stored.values() if isinstance(reported, str)]
        if errors:
            yield f"a replica cannot be read: partition={partition} {errors[0]}"
        elif len(set(stored.values())) > 1:
            yield f"replicas differ: partition={partition} bytes={ {name: len(reported) for name, reported in stored.items()} }"
        else:
            for served in {served for served in stored.values() if isinstance(served, bytes)}:
                yield from differences(served, evidence.logs[partition], partition)


def everything_heals(evidence: Evidence) -> Iterator[str]:
    """12: after the faults every partition accepts appends again within the bound."""
    for partition in evidence.replicas_assigned:
        took = evidence.first_append_s.get(partition)
        if took is None or took > evidence.heal_bound_s:
            yield f"no append within {evidence.heal_bound_s:g} s of the last fault: partition={partition} took={took}"


def a_failed_sync_is_final(evidence: Evidence) -> Iterator[str]:
    """14: a node whose sync of a partition failed acknowledges nothing more of it in this life."""
    for failed in evidence.history.syncs_failed:
        before = [-1]
        for each in evidence.history.acknowledgments:
            if (each.storage, each.life, each.partition) == (failed.storage, failed.life, failed.partition):
                if each.at_s <= failed.at_s:
                    before.append(each.last)
                elif each.last > max(before):
                    yield f"{failed.storage} acknowledged {each.last} at {each.at_s:.3f}, after its sync failed at {failed.at_s:.3f}"
                    break


def received_is_synced_in_time(evidence: Evidence) -> Iterator[str]:
    """23: what a node acknowledged from memory it has on disk once the topic's window is over, as long as it lives."""
    waiting: dict[tuple[str, int, int], list[tuple[float, int]]] = defaultdict(list)
    for each in evidence.history.acknowledgments:
        window_s = evidence.loss_window_s.get(each.partition)
        if window_s is None:
            continue
        key = (each.storage, each.life, each.partition)
        waiting[key] = [(at_s, received) for at_s, received in waiting[key] if received > each.last]
        if waiting[key] and each.at_s > waiting[key][0][0] + window_s:
            at_s, received = waiting[key][0]
            yield f"{each.storage} received {received} at {at_s:.3f} and had {each.last} on disk at {each.at_s:.3f}: partition={each.partition}"
            waiting[key] = []
        if each.received > each.last:
            waiting[key].append((each.at_s, each.received))


def metadata_is_compared_and_set(evidence: Evidence) -> Iterator[str]:
    """15, 10: partition metadata and assignment are written by comparison alone, and generations and sessions only rise."""
    newest: dict[str, tuple[int, int]] = {}
    owners: dict[int, int] = {}
    for written in evidence.history.metadata:
        if written.path == RESTORED:
            newest.clear()
            owners.clear()
        elif written.path.startswith("/store/partition/"):
            if written.expected == -1:
                yield f"written without comparison: {written.path} at {written.at_s:.3f}"
            found = PartitionMetadata.from_bytes(written.data)
            before = newest.get(written.path, (-1, -1))
            if found.session < before[1] or found.generation < before[0]:
                yield f"{written.path} goes back from {before} to {(found.generation, found.session)} at {written.at_s:.3f}"
            newest[written.path] = (found.generation, found.session)
        elif written.path == ASSIGNMENT:
            if written.expected == -1:
                yield f"written without comparison: {written.path} at {written.at_s:.3f}"
            for partition, owned in Assignment.from_bytes(written.data).partitions.items():
                if owned.generation < owners.get(partition, 0):
                    yield f"assigned generation goes back: partition={partition} to={owned.generation} at {written.at_s:.3f}"
                owners[partition] = owned.generation


def reported_marks_are_recorded(evidence: Evidence) -> Iterator[str]:
    """15: a replica receives no mark that the next recovery would not know: the mark is recorded as the end of the old session, or the session has
    members. Applies to owners without a successor; replicas refuse the others."""
    for reported in evidence.history.reported_marks:
        found = PartitionMetadata.from_bytes(reported.recorded)
        has_members = any(state.session == reported.session for state in found.replicas.values())
        if found.replicas and found.session == reported.session and not has_members and closed_at(found) != reported.mark:
            where = f"partition={reported.partition} replica={reported.replica} session={reported.session}"
            yield f"told {reported.mark} at {reported.at_s:.3f}, and recorded was {closed_at(found)}: {where}"


def clients_keep_their_word(evidence: Evidence) -> Iterator[str]:
    """22: every append is answered once, at its deadline at the latest."""
    for attempt in evidence.history.attempts:
        if attempt.outcome == "died":
            continue
        if attempt.outcome == "pending" or attempt.ended_s is None or attempt.answers != 1:
            yield f"attempt {attempt.number} was answered {attempt.answers} times: client={attempt.client}"
        elif attempt.ended_s - attempt.started_s > attempt.timeout_s / evidence.clock_rate_min + ANSWER_LATE_S + evidence.longest_pause_s:
            took = attempt.ended_s - attempt.started_s
            yield f"attempt {attempt.number} was answered after {took:.3f} s, its deadline was {attempt.timeout_s:g} s: client={attempt.client}"


def no_client_complains(evidence: Evidence) -> Iterator[str]:
    """What only a client or the harness sees; each complaint names its invariant."""
    yield from evidence.history.complaints


def _numbers(logs: Mapping[int, Iterable[Transaction]]) -> set[int]:
    return {number_of(transaction.data) for log in logs.values() for transaction in log}


CHECKERS: Mapping[str, Checker] = {
    checker.__name__: checker
    for checker in (
        ids_are_dense,
        one_id_one_content,
        acknowledged_is_in_the_log,
        rejected_is_not_in_the_log,
        nothing_is_in_the_log_twice,
        locks_are_serializable,
        counts_have_no_lost_update,
        *LOCK_CHECKERS,
        acknowledged_order_is_real_time,
        no_reader_passes_the_majority,
        marks_never_fall,
        streams_are_contiguous,
        generations_never_fall,
        replicas_are_identical,
        everything_heals,
        a_failed_sync_is_final,
        received_is_synced_in_time,
        metadata_is_compared_and_set,
        reported_marks_are_recorded,
        *FAULT_CHECKERS,
        *KEPT_CHECKERS,
        *REFILL_CHECKERS,
        quotas_count_accepted_work_alone,
        clients_keep_their_word,
        no_client_complains,
    )
}


def check(evidence: Evidence) -> list[str]:
    """Everything that is wrong, each with the name of the checker that found it."""
    return [f"{name}: {wrong}" for name, checker in CHECKERS.items() for wrong in checker(evidence)]
