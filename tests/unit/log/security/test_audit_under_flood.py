"""A flood of denied calls erases nothing from the audit trail that was recorded before it, whatever the callers send and however many names they
have."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waltz_log.errors import NotAllowed, PermissionDenied
from waltz_log.line_limit import WINDOW_S
from waltz_log.outside_text import NAME_BYTES_MAX
from waltz_log.security import audit_log
from waltz_log.security.audit_log import AuditSettings, acted, denied, open_audit
from waltz_log.security.denial_limit import DAY_S, DENIALS_MAX, TOGETHER_MAX, DenialLimit
from waltz_log.security.denied_principals import CALLS_KEPT, KEPT_DAYS, OTHERS, PRINCIPALS_MAX, DeniedPrincipals

MIB = 1024 * 1024
HUGE = "\x00\x1b]0;" * 650_000
"""2.6 MB of control characters: 15.6 MB in JSON."""


@pytest.fixture(autouse=True)
def no_file_afterwards() -> Iterator[None]:
    open_audit(None)
    yield
    open_audit(None)


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Of the limits and of the folder: ten minutes of a flood pass in a second."""
    clock = _Clock()
    monkeypatch.setattr(audit_log, "DenialLimit", lambda **given: DenialLimit(clock, **given))
    monkeypatch.setattr(audit_log, "DeniedPrincipals", lambda folder: DeniedPrincipals(folder, clock))
    return clock


def _denial(principal: str, resource: str) -> PermissionDenied:
    return PermissionDenied(principal=f"spiffe://waltz/application/{principal}", operation="append", resource=resource)


def _lines(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("audit.jsonl*"), reverse=True)
    return [json.loads(line) for path in files if path.is_file() for line in path.read_text().splitlines()]


def _kept(folder: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted((folder / "audit.jsonl.denied").glob("*.json")) if path.name != "budget.json"]
    return {each.get("principal", "").rpartition("/")[2]: each for each in found}


def test_a_flood_by_three_principals_erases_no_earlier_line(tmp_path: Path, clock: _Clock) -> None:
    """The smallest files that the settings permit, and ten minutes of denied calls with the largest names, 100 in a second."""
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl", bytes_max=MIB, files_max=1))
    acted("access granted", principal="spiffe://waltz/application/b", resource="shop/*")
    for number in range(5):
        denied(_denial("earlier", f"shop/orders-{number}"))
    for second in range(600):
        clock.now_s += 1
        for call in range(100):
            denied(_denial(f"flood-{call % 3}", f"{second}{HUGE if call % 50 == 0 else HUGE[:4000]}"))
    lines = _lines(tmp_path)
    assert lines[0]["event"] == "access granted"
    assert [each["resource"] for each in lines if each.get("principal") == "spiffe://waltz/application/earlier"] == [
        f"shop/orders-{number}" for number in range(5)
    ]
    assert sum(path.stat().st_size for path in tmp_path.glob("audit.jsonl*") if path.is_file()) < MIB // 2
    open_audit(None)
    kept = _kept(tmp_path)
    assert [each["resource"] for each in kept["earlier"]["first_calls"]] == [f"shop/orders-{number}" for number in range(5)]
    for number in range(3):
        own = kept[f"flood-{number}"]
        assert (len(own["first_calls"]), len(own["last_calls"])) == (CALLS_KEPT, CALLS_KEPT)
        assert str(own["first_calls"][0]["resource"]).startswith("0")
        assert str(own["last_calls"][-1]["resource"]).startswith("599")
    assert sum(kept[f"flood-{number}"]["count"] for number in range(3)) == 60_000


def test_what_a_caller_named_is_printable_and_cut_in_the_file_the_log_and_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [
        _denial("a", HUGE),
        PermissionDenied(principal=HUGE, operation=HUGE, roles=HUGE),
        NotAllowed(action=HUGE, topic=HUGE, principal="\u202e" * 100_000),
    ]
    for error in errors:
        denied(error)
        denied(error, verified=False)
    acted("access granted", principal=HUGE)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert len(text.encode()) < 7 * 6 * NAME_BYTES_MAX
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    for error in errors:
        denied(error)
        denied(error, verified=False)
    acted("access granted", principal=HUGE)
    open_audit(None)
    for path in [tmp_path / "audit.jsonl", *(tmp_path / "audit.jsonl.denied").glob("*.json")]:
        data = path.read_bytes()
        assert len(data) < 7 * 6 * NAME_BYTES_MAX, path
        assert all(each == 10 or 32 <= each < 127 for each in data), path
        assert "\x1b" not in json.dumps(json.loads(data.splitlines()[0]) if path.suffix == ".jsonl" else json.loads(data)), path


def test_long_names_that_begin_alike_stay_two_principals(tmp_path: Path) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    for end in "ab":
        denied(_denial("x" * 5000 + end, "shop/orders"))
    assert len({each["principal"] for each in _lines(tmp_path)}) == 2


def test_denials_fill_a_quarter_of_the_files_and_regain_all_of_them_in_a_month() -> None:
    now_s = [0.0]
    limit = DenialLimit(lambda: now_s[0], files_bytes=1_000_000)

    def flood() -> int:
        """By 100 names, until nothing is written any more."""
        before = written = 0
        while True:
            for number in range(100):
                if limit.count(str(number)) is not None:
                    limit.written(str(number), 100)
                    written += 100
            assert written < 1_000_000
            if written == before:
                return written
            before = written
            now_s[0] += WINDOW_S

    assert flood() == pytest.approx(250_000, rel=0.05)
    now_s[0] += 3 * DAY_S
    assert flood() == pytest.approx(100_000, rel=0.05)
    assert limit.count("new") is None


def test_one_principal_gets_a_sixteenth_of_the_budget_and_another_one_is_still_written() -> None:
    now_s = [0.0]
    limit = DenialLimit(lambda: now_s[0], files_bytes=1_000_000)
    written = 0
    for _ in range(10_000):
        now_s[0] += 1
        if limit.count("a") is not None:
            limit.written("a", 100)
            written += 100
    assert written == pytest.approx(250_000 / 16 + 1_000_000 / 16 * 10_000 / (30 * DAY_S), rel=0.05)
    assert limit.count("b") == 0


def test_many_names_together_write_a_bounded_number_of_lines_in_a_window() -> None:
    limit = DenialLimit(lambda: 0.0)
    assert sum(limit.count(str(number % 5000)) is not None for number in range(50_000)) == TOGETHER_MAX


def test_a_restart_gives_denials_no_new_room(tmp_path: Path, clock: _Clock) -> None:
    settings = AuditSettings(file=tmp_path / "audit.jsonl", bytes_max=MIB, files_max=1)
    for _ in range(40):
        open_audit(settings)
        for number in range(100):
            for call in range(DENIALS_MAX):
                denied(_denial(f"flood-{number}", f"{call}{'x' * 200}"))
        clock.now_s += WINDOW_S
    assert sum(path.stat().st_size for path in tmp_path.glob("audit.jsonl*") if path.is_file()) < MIB * 2 / 4 + 50_000


def test_what_is_kept_of_a_principal_outlives_the_process(tmp_path: Path) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    denied(_denial("a", "shop/first"))
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    denied(_denial("a", "shop/second"))
    kept = _kept(tmp_path)["a"]
    assert (kept["count"], [each["resource"] for each in kept["first_calls"]]) == (2, ["shop/first", "shop/second"])


def test_more_principals_than_are_kept_are_counted_together_and_replace_none(tmp_path: Path) -> None:
    clock = _Clock()
    kept = DeniedPrincipals(tmp_path / "denied", clock)
    for number in range(PRINCIPALS_MAX + 200):
        kept.add(f"name-{number}", {"operation": "append"})
    kept.close()
    files = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "denied").glob("*.json")}
    assert len(files) == PRINCIPALS_MAX + 1
    assert {each["principal"] for name, each in files.items() if name != OTHERS} == {f"name-{number}" for number in range(PRINCIPALS_MAX)}
    assert files[OTHERS]["count"] == 200
    assert files[OTHERS]["last_calls"][-1]["principal"] == f"name-{PRINCIPALS_MAX + 199}"
    clock.now_s += (KEPT_DAYS + 1) * DAY_S
    kept.add("later", {"operation": "append"})
    assert sum(json.loads(path.read_text()).get("principal") == "later" for path in (tmp_path / "denied").glob("*.json")) == 1
    assert len(list((tmp_path / "denied").glob("*.json"))) == PRINCIPALS_MAX + 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"count": "x"}', b"[" * 100_000, b"\xff", b"x" * 300_000])
def test_a_foreign_file_in_the_folder_is_ignored(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "audit.jsonl.denied"
    folder.mkdir()
    (folder / "0.json").write_bytes(content)
    os.mkfifo(folder / "1.json")
    (folder / "2.json").symlink_to("/dev/zero")
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    denied(_denial("a", "shop/orders"))
    assert "a" in {str(json.loads(path.read_text()).get("principal")).rpartition("/")[2] for path in folder.glob("????????*.json")}


def test_only_the_user_of_the_process_reads_the_trail(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
        denied(_denial("a", "shop/orders"))
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert set(found.values()) == {0o600, 0o700}
    assert found["audit.jsonl.denied"] == 0o700


def test_a_full_disk_does_not_fail_the_call_that_is_denied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_audit(AuditSettings(file=tmp_path / "audit.jsonl"))
    (tmp_path / "audit.jsonl.denied").rmdir()
    denied(_denial("a", "shop/orders"))
    shown = capsys.readouterr()
    assert "denied principal not written" in shown.out + shown.err
