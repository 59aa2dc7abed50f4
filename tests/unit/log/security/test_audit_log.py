"""The audit log: what its lines hold, how it rotates, how it limits denials, and that no secret reaches logs, errors or representations."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltz_log.client import ClientSettings
from waltz_log.errors import InvalidSetting, PermissionDenied, encode
from waltz_log.line_limit import KEYS_MAX, WINDOW_S
from waltz_log.security.audit_log import AuditSettings, acted, denied, open_audit
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates
from waltz_log.security.denial_limit import DENIALS_MAX, DenialLimit
from waltz_log.server import ServerSettings
from waltz_log.storage.node.read_access import OpenedBy
from waltz_log.testing import InMemoryCluster
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.methods import READ

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def no_file_afterwards() -> Iterator[None]:
    open_audit(None)
    yield
    open_audit(None)


def _denial(principal: str = "spiffe://waltz/application/a", resource: str = "shop/orders") -> PermissionDenied:
    return PermissionDenied(principal=principal, operation="append", resource=resource)


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_denial_and_an_action_are_json_lines_with_names_alone(tmp_path: Path) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    denied(_denial())
    acted("access granted", principal="spiffe://waltz/application/b", operations="read", resource="shop/*", stated_by=None)
    denial, action = _lines(tmp_path / "audit.jsonl")
    assert str(denial.pop("time")).endswith("+00:00")
    assert denial == {"event": "request denied", "principal": "spiffe://waltz/application/a", "operation": "append", "resource": "shop/orders"}
    assert (action["event"], action["resource"]) == ("access granted", "shop/*")


def test_a_worker_has_a_file_of_its_own_and_the_last_opened_is_written(tmp_path: Path) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"), worker=3)
    denied(_denial())
    assert len(_lines(tmp_path / "audit.jsonl-3")) == 1
    assert _lines(tmp_path / "audit.jsonl") == []


def test_a_full_file_is_renamed_and_the_oldest_is_removed(tmp_path: Path) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl", bytes_max=MIB, files_max=2))
    for number in range(4000):
        acted("access granted", resource=f"shop/{number}", principal="x" * 600)
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.denied"]
    assert all((tmp_path / each).stat().st_size <= MIB for each in files)
    assert _lines(tmp_path / "audit.jsonl")[-1]["resource"] == "shop/3999"


def test_a_principal_that_is_denied_without_pause_fills_no_disk_and_hides_no_other(tmp_path: Path) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    for number in range(1000):
        denied(_denial(resource=f"log:{number}"))
    denied(_denial("spiffe://waltz/application/other"))
    lines = _lines(tmp_path / "audit.jsonl")
    assert len(lines) == DENIALS_MAX + 1
    assert lines[-1]["principal"] == "spiffe://waltz/application/other"


def test_what_was_left_out_is_counted_in_the_next_window() -> None:
    now_s = [100.0]
    limit = DenialLimit(lambda: now_s[0])
    assert [limit.count("a") for _ in range(DENIALS_MAX)] == [0] * DENIALS_MAX
    assert [limit.count("a") for _ in range(7)] == [None] * 7
    assert limit.count("b") == 0
    now_s[0] += WINDOW_S
    assert limit.count("a") == 7
    assert limit.count("a") == 0


def test_the_counts_of_many_principals_are_bounded() -> None:
    limit = DenialLimit(lambda: 0.0, files_bytes=1_000_000)
    for number in range(3 * KEYS_MAX):
        limit.count(str(number))
    assert (len(limit._lines), len(limit._budgets)) == (KEYS_MAX, KEYS_MAX)


@pytest.mark.parametrize("place", ["missing/audit.jsonl", "."])
def test_a_file_that_cannot_be_opened_is_named_at_start(tmp_path: Path, place: str) -> None:
    with pytest.raises(InvalidSetting, match=r"audit.file.*cannot be written"):
        open_audit(AuditSettings(file=tmp_path / place))


def test_a_disk_that_becomes_full_does_not_fail_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    open_audit(AuditSettings(file=Path("/dev/full")))
    denied(_denial())
    shown = capsys.readouterr()
    assert "audit line not written" in shown.out + shown.err


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_user_reads_the_file_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        open_audit(AuditSettings(file=tmp_path / "audit", bytes_max=1 << 20, files_max=2))
        for number in range(5000):
            acted("access revoked", principal="p" * 200, resource=f"shop/{number:0200}")
    finally:
        os.umask(before)
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert len(files) >= 3
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def test_a_named_pipe_that_no_process_reads_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "audit")
    with pytest.raises(InvalidSetting, match=r"audit\.file"):
        open_audit(AuditSettings(file=tmp_path / "audit"))


def test_without_a_file_lines_are_events_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    denied(_denial())
    acted("access revoked", principal="spiffe://waltz/application/a", resource="shop/orders")
    shown = capsys.readouterr()
    assert "request denied" in shown.out + shown.err
    assert "access revoked" in shown.out + shown.err


async def test_a_secret_is_in_no_status_representation_or_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The key of a certificate, and the token by which an owner is known to its replicas."""
    tls = DevelopmentAuthority(tmp_path).issue("node", "a")
    key = tls.key.read_text().splitlines()[1]
    certificates = Certificates(tls)
    shown = [repr(each) for each in (tls, certificates, certificates.current(), ServerSettings(coordinator="a:1", tls=tls), ClientSettings(tls=tls))]
    token = b"\x01secret of the owner"
    opened = OpenedBy(1, token, "shop/orders", ())
    shown += [repr(opened), str(opened), f"{opened}"]
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    async with InMemoryCluster(partitions=1, storages=1, servers=1) as cluster:
        client = await cluster.client()
        await client.append(0, b"the payload")
        ((server, _),) = cluster.servers.values()
        ((node, _),) = cluster.storages.values()
        stored = node.access.of(0)
        assert stored is not None
        request = pb.ReadRequest(cluster_key=b"wrong", partition=0, owner_token=stored.token)
        stream = cluster.network.connect(cluster.storages["storage-0"][1].address).read(READ, request)
        with pytest.raises(Exception, match="cluster") as refused:
            await stream.receive()
        shown += [repr(server.statistics()), repr(node.statistics()), repr(stored), encode(refused.value), repr(refused.value)]  # type: ignore[arg-type]
        secrets = (key, "secret of the owner", repr(stored.token), stored.token.hex(), "the payload")
    captured = capsys.readouterr()
    shown += [captured.out, captured.err, (tmp_path / "audit.jsonl").read_text()]
    assert [each for each in secrets for text in shown if each in text] == []
