"""What the run with a hostile client reports: each thing that must not be is a fault, and its forged frame is what it claims to be."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from verification.hostile import attacker
from verification.hostile.attacker import ATTACKS, MISSED_TRIES_MAX, Attacker
from verification.hostile.exhausting import LOCKED, LOCKS_EACH, locks_frame
from verification.hostile.forging import cancelling
from verification.hostile.honest import PARTITIONS, Outcomes, body
from verification.hostile.probes import LIVEZ_S, Probes
from verification.hostile.run import GROWTH_BYTES_MAX, P99_FLOOR_S, Attacked, _latencies, compare
from verification.hostile.target import Hostile, Outcome, Target
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.records import decode_record, encode_records
from waltz_log.errors import ConnectionLost, CorruptData, PermissionDenied
from waltz_log.server.ordering.frame_pieces import LockWeights, pieces_of
from waltz_log.server.ordering.sequencer import ReceivedFrame, Sequencer
from waltz_log.testing import SyncInMemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import MAX_FRAME_BYTES

ROOT = Path(__file__).parents[3]

SOUND = Attacked(
    appends=10,
    committed=10,
    failed=[],
    wrong=[],
    breaches=[],
    tried=dict.fromkeys(ATTACKS, 1),
    achieved=dict.fromkeys(ATTACKS, 1),
    errors={},
    alive={"server-0": 30, "storage-0": 30},
    not_alive=[],
    longest_probe_s=0.1,
    turns_s=[(0.05, 0.03)],
    p50_alone_s=0.002,
    p99_alone_s=0.03,
    p50_s=0.002,
    p99_s=0.05,
    growth_bytes=0,
    late_growth_bytes=0,
)


def test_a_sound_run_has_no_faults() -> None:
    assert SOUND.faults == []
    assert SOUND.slower == pytest.approx(5 / 3)


def test_each_turn_is_compared_with_the_pause_after_it() -> None:
    """A machine that is slow for a minute makes one turn slow, and the pause after it too."""
    times = [*range(10), 20, 21, 25, 30]
    outcomes = Outcomes(list(range(14)), [float(each) for each in times], [0.03] * 5 + [0.06] * 5 + [0.03, 0.05, 0.5, 0.4], [], 1)
    among, alone = _latencies(outcomes, [(5.0, 10.0), (21.0, 22.0), (30.0, 32.0)])
    assert among == [[0.06] * 5, [0.05], [0.4]]
    assert alone == [[0.03], [0.5], [0.5]], "without a pause after it, the last one before it counts"
    assert replace(SOUND, turns_s=[(0.06, 0.03), (0.01, 0.03), (0.5, 0.03)]).slower == pytest.approx(2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"committed": 9}, "1 appends are not committed"),
        ({"failed": ["3: unknown"]}, "3: unknown"),
        ({"wrong": ["append 3"]}, "append 3"),
        ({"breaches": ["fenced"]}, "fenced"),
        ({"growth_bytes": GROWTH_BYTES_MAX + 1}, "a process grew"),
        ({"late_growth_bytes": GROWTH_BYTES_MAX + 1}, "memory is not flat"),
        ({"ended": ["server-0"]}, "server-0 ended"),
        ({"alive": {"server-0": 30, "storage-0": 0}}, "no probe of storage-0 was answered"),
        ({"alive": {}}, "no node was probed"),
        ({"not_alive": ["server-0 failed a probe"]}, "server-0 failed a probe"),
    ],
)
def test_each_thing_that_must_not_be_is_a_fault(changed: dict[str, Any], said: str) -> None:
    assert any(said in each for each in replace(SOUND, **changed).faults)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_that_achieves_nothing_fails_the_verdict(name: str) -> None:
    others = {each: 1 for each in ATTACKS if each != name}
    for achieved in (others, others | {name: 0}):
        assert replace(SOUND, achieved=achieved).faults == [f"{name} achieved nothing, so the run says nothing of it"]


async def test_an_attack_that_no_node_answered_is_tried_again_behind_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once is little for a short run on a busy machine. One that never reaches anything stays a fault."""

    async def answered(_: Hostile) -> Outcome:
        return Outcome(achieved=1)

    async def answered_late(_: Hostile) -> Outcome:
        return Outcome(achieved=int(attacking.tried["answered_late"] > 1), breaches=["seen late"])

    async def never_answered(_: Hostile) -> Outcome:
        raise ConnectionLost(address="a:1", reason="gone")

    monkeypatch.setattr(attacker, "ATTACKS", {each.__name__: each for each in (answered, answered_late, never_answered)})
    monkeypatch.setattr(attacker, "PAUSE_S", 0.0)
    attacking = Attacker(Hostile(Target("", "", (), (), (), "", (), (), 1, 1.0), None, Random(1)))
    await attacking.run(0.0)  # no time for a turn
    assert (attacking.tried["answered"], attacking.achieved["answered"]) == (1, 1)
    assert (attacking.tried["answered_late"], attacking.achieved["answered_late"], attacking.breaches) == (2, 1, ["seen late"] * 2)
    assert (attacking.tried["never_answered"], attacking.achieved["never_answered"]) == (MISSED_TRIES_MAX, 0)


def test_only_a_server_that_answers_refuses() -> None:
    outcome = Outcome()
    for error in (ConnectionLost(address="a:1", reason="gone"), TimeoutError(), OSError()):
        outcome.refused_with(error)
    assert outcome.achieved == 0
    outcome.refused_with(PermissionDenied(principal="hostile", operation="read", resource="log:3"))
    assert outcome.achieved == 1


def test_the_summary_says_that_a_short_p99_counts_as_the_floor_and_what_memory_each_node_used() -> None:
    found = replace(SOUND, p99_alone_s=0.001, p99_s=0.03, turns_s=[(0.03, 0.001)], memory_mib={"server-0": [100, 110, 120, 150, 300, 115, 160]})
    text = "\n".join(found.summary)
    assert found.slower == pytest.approx(0.03 / P99_FLOOR_S)
    assert "p99 0.001 s alone and 0.03 s under attack; in the middle of 1 turns 1.50 times as long" in text
    assert f"a p99 below {P99_FLOOR_S} s counts as {P99_FLOOR_S} s" in text
    assert "memory of server-0: 100 MiB before, peak 300 MiB (+200), late growth +5 MiB" in text


class _Appender:
    client_id, last_sequence, on_disk, meter, quota_refusals = 7, -1, False, None, 0


def test_the_frame_of_locks_is_as_large_as_a_frame_may_be_and_its_locks_are_judged() -> None:
    hostile = Hostile(Target("", "", (), (), (), "", (), (), 1, 1.0), None, Random(1))
    hostile.own_id, mark = _Appender.client_id, 41
    frame = locks_frame(hostile, 0, pb.MountResponse(generation=3, high_water_mark=mark))
    assert len(frame.locks) == 8 * sum(frame.lock_counts) == 8 * LOCKED * LOCKS_EACH
    assert MAX_FRAME_BYTES - (2 << 20) < frame.ByteSize() < MAX_FRAME_BYTES
    pieces = list(pieces_of(ReceivedFrame(_Appender(), frame), LockWeights()))  # type: ignore[arg-type]  # it gets no answers here
    assert len(pieces) > 100, "columns that do not fit each other stay in one piece, which is refused"
    sequencer = Sequencer(0, 3, mark, lock_entries_max=1 << 20, record_bytes_max=1 << 20)
    found = sequencer.sequence(pieces[:1], 0, mark)
    assert (found.broken, found.refused, found.rejected, found.above_log) == ([], [], [], [])
    assert len(sequencer.locks) == pieces[0].count * LOCKS_EACH > 1000


# ---- probes ----------------------------------------------------------------------------------------------------------------------------------------


@contextmanager
def _node(status: HTTPStatus, after_s: float = 0.0) -> Iterator[str]:
    """A node that answers probes with the status, after that time."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(after_s)
            self.send_response(status if self.path == "/livez" else HTTPStatus.NOT_FOUND)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_each_node_is_probed_and_one_that_fails_or_answers_late_is_a_fault() -> None:
    with (
        _node(HTTPStatus.OK) as sound,
        _node(HTTPStatus.SERVICE_UNAVAILABLE) as stuck,
        _node(HTTPStatus.OK, 0.6) as slow,
        Probes({"sound": sound, "stuck": stuck, "slow": slow}, timeout_s=0.3, period_s=0.01) as probes,
    ):
        limit_s = time.monotonic() + 30
        while probes.answered["sound"] < 2 or len({each.split()[0] for each in probes.failed}) < 2:
            assert time.monotonic() < limit_s, probes.failed
            time.sleep(0.01)
    assert probes.answered["stuck"] == probes.answered["slow"] == 0
    assert {each.split()[0] for each in probes.failed} >= {"stuck", "slow"}
    assert probes.longest_s > 0.3


@pytest.mark.parametrize("node", ["server", "storage"])
def test_a_probe_waits_as_long_as_that_of_kubernetes(node: str) -> None:
    (manifest,) = [
        each for each in yaml.safe_load_all((ROOT / f"conf/deploy/kubernetes/base/{node}.yaml").read_text()) if each["kind"] == "StatefulSet"
    ]
    (probe,) = [each["livenessProbe"] for each in manifest["spec"]["template"]["spec"]["containers"] if "livenessProbe" in each]
    (timeout,) = re.findall(r"timeout=([\d.]+)", probe["exec"]["command"][-1])
    assert float(timeout) == LIVEZ_S < probe["timeoutSeconds"]


def test_receipts_are_compared_with_the_log() -> None:
    with SyncInMemoryCluster(partitions=1 + max(PARTITIONS)) as cluster:
        client = cluster.client()
        ids = [client.append(PARTITIONS[number % len(PARTITIONS)], body(number)).transaction_id for number in range(6)]
        right = Outcomes(ids, [0.0] * 6, [0.0] * 6, [], 1)
        assert compare(client, right) == []
        swapped = replace(right, ids=[ids[2], ids[1], ids[0], *ids[3:]])
        assert len(compare(client, swapped)) == 2
        invented = replace(right, ids=[*ids[:5], 77])
        assert compare(client, invented) == [f"partition {PARTITIONS[1]} lacks 1 transactions with a receipt"]


def test_wrong_checksums_cancel_each_other() -> None:
    bodies = [b"cancels %d" % (number % 10) for number in range(4)]
    records = encode_records(5, 1, 0, 0, [0] * 4, bodies)
    length = len(records) // 4
    forged = cancelling(records, length)
    with pytest.raises(CorruptData):
        decode_record(forged)
    with pytest.raises(CorruptData):
        decode_record(forged, length)
    assert forged[2 * length :] == records[2 * length :]
    first, second = (_closing(forged, at * length) ^ _closing(records, at * length) for at in (1, 2))
    zeros = bytes(length)
    assert crc32(first.to_bytes(4, "little") + zeros[4:]) ^ crc32(zeros) == second, "the register is right again after the second"


def _closing(records: bytes, end: int) -> int:
    return int.from_bytes(records[end - 4 : end], "big")
