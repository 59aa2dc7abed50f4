from __future__ import annotations

import pickle
import re
import traceback

import pytest

from waltz_log import errors
from waltz_log.errors import WaltzError
from waltz_log.errors.explained import explain_class

SAMPLES: list[WaltzError] = [
    errors.InvalidRequest(reason="no"),
    errors.InvalidSetting.unknown("lisen", ["listen", "name"]),
    errors.InvalidBatch(row=3, column="data", reason="null"),
    errors.TransactionTooLarge(what="data", size=3, limit=2),
    errors.UnknownRecord(what="record", id=7),
    errors.NoSuchTopic.among("shop/ordrs", ["shop/orders"]),
    errors.TopicDeleted(topic="shop/orders"),
    errors.LockConflict(partition=1, winner=7),
    errors.GaveUpOnConflict(partition=1, winner=7, attempts=5, elapsed_s=0.25, limit="attempts"),
    errors.NotAppended(partition=1, reason="moving"),
    errors.QuotaExceeded(partition=1, quota="bytes_per_s", principal="ada", topic="shop/orders", retry_after_s=0.25),
    errors.GaveUp(partition=1, reason="moving", attempts=2, elapsed_s=0.25, winner=None, limit="retry_budget"),
    errors.OutcomeUnknown(partition=1, client_id=2, sequence=3, since=4, reason="deadline"),
    errors.Unavailable(reason="no"),
    errors.ClusterUnavailable(address="host:1/x", reason="no"),
    errors.ConnectionLost(address="host:1", reason="gone"),
    errors.NotOwner(partition=1, reason="moved"),
    errors.OutboxFull(bytes=5, reason="bytes_max reached"),
    errors.OutboxFenced(client_id=1, mine=2, newer=3, reason="another copy"),
    errors.BelongsToTopic(partition=3, topic="shop/orders"),
    errors.NotAllowed(action="append", topic="shop/orders", principal=None),
    errors.PermissionDenied(principal=None, operation="append", roles="reader"),
    errors.Fenced(what="session", partition=1, mine=2, newer=3),
    errors.ReplicaFenced(what="session", partition=1, mine=2, newer=3, clean_session=1),
    errors.CoordinatorBehind(partition=1, replica="storage-0", recorded=2, found=3),
    errors.SessionTooOld(partition=1, asked=3, session=2),
    errors.ClusterKeyMismatch(where="a:1"),
    errors.OutOfRange(partition=1, asked=2, first=3, last=4),
    errors.NotCommittedYet(partition=1, asked=5, first=3, last=4),
    errors.Trimmed(partition=1, asked=2, first=3, last=4),
    errors.CorruptData(where="x", offset=1, transaction_id=2, reason="checksum"),
    errors.EnvelopeBroken(topic="shop/orders", partition=1, transaction_id=2),
    errors.StorageFailed(partition=1, reason="broken"),
    errors.StorageFull(partition=1, reason="full", free_bytes=4096),
    errors.WorkerFailed(worker=1, lives=7, ended="exit code 5"),
    errors.JournalFull(reason="files_max reached"),
    errors.JournalFailed(reason="input/output error"),
    errors.ProtocolViolation(reason="junk"),
    errors.UndeclaredTransition(machine="mount", source="ended", target="ready"),
]


def test_the_samples_are_all_there_is() -> None:
    assert {type(error).__name__ for error in SAMPLES} | {"WaltzError"} == {name for name in errors.__all__ if name[0].isupper()}


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_the_wire_with_its_facts(error: WaltzError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), errors.decode(errors.encode(error))):
        assert type(again) is type(error)
        assert again.facts == error.facts
        assert str(again) == str(error)
        for name, value in error.facts.items():
            assert getattr(again, name) == value


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_the_tree_is_the_one_in_the_docstring(error: WaltzError) -> None:
    drawn: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        bare = line.lstrip(" │├└─")
        if not bare or bare.split()[0] not in {*(type(e).__name__ for e in SAMPLES), "WaltzError"} or (bare == line.strip() and bare != "WaltzError"):
            continue
        depth = len(line) - len(bare)
        while parents and parents[-1][0] >= depth:
            parents.pop()
        drawn[bare.split()[0]] = parents[-1][1] if parents else ""
        parents.append((depth, bare.split()[0]))
    assert type(error).__mro__[1].__name__ == drawn[type(error).__name__]


def test_the_same_call_does_not_succeed_after_a_lock_conflict() -> None:
    """It names the same mark, and meets the same winner. `GaveUpOnConflict` is of calls that read up to the winner and decide again."""
    assert errors.LockConflict.retriable is False
    assert explain_class(errors.LockConflict).retriable is False


def test_a_missing_or_unknown_field_is_a_type_error() -> None:
    """At run time, and for mypy: an ignored error that does not occur fails `make check`, because mypy's strict mode reports unused ignores."""
    with pytest.raises(TypeError, match="winner"):
        errors.LockConflict(partition=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="more"):
        errors.LockConflict(partition=1, winner=2, more=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        errors.LockConflict(1, 2)  # type: ignore[call-arg]


def test_a_field_that_the_class_fixes_cannot_be_passed() -> None:
    with pytest.raises(TypeError, match="reason"):
        errors.TransactionTooLarge(what="data", size=3, limit=2, reason="no")  # type: ignore[call-arg]
    assert errors.TransactionTooLarge(what="data", size=3, limit=2).reason == "above a limit"
    with pytest.raises(TypeError, match="partition"):
        errors.OutboxFenced(client_id=1, mine=2, newer=3, reason="no", partition=4)  # type: ignore[call-arg]


def test_mypy_refuses_a_field_of_the_wrong_type_and_a_changed_field() -> None:
    """Nothing to assert at run time: what mypy does not refuse, it reports as an unused ignore."""
    error = errors.LockConflict(partition="1", winner=2)  # type: ignore[arg-type]
    error = errors.GaveUpOnConflict(partition=1, winner=None, attempts=5, elapsed_s=0.25, limit="attempts")  # type: ignore[arg-type]
    error.winner = 3  # type: ignore[misc]


class Refined(errors.NotOwner):
    """An error of an application."""

    text = "refined"
    hint: str
    reason: str


def test_a_subclass_elsewhere_is_checked_too_and_survives_pickling() -> None:
    with pytest.raises(TypeError, match="hint"):
        Refined(partition=1, reason="moved")  # type: ignore[call-arg]
    error = Refined(partition=1, hint="up", reason="moved")
    assert str(error) == "refined: moved: partition=1 hint=up"
    assert isinstance(error, errors.Unavailable)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts, again.exit_code) == (Refined, error.facts, errors.NotOwner.exit_code)


def test_causes_notes_and_tracebacks_are_kept() -> None:
    error = errors.Unavailable(reason="no")
    error.add_note("a note")
    cause = OSError("disk")
    with pytest.raises(errors.Unavailable) as caught:
        raise error from cause
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.__traceback__ is not None
    assert error.__notes__ == pickle.loads(pickle.dumps(error)).__notes__ == ["a note"]
    assert not hasattr(pickle.loads(pickle.dumps(errors.Unavailable(reason="no"))), "__notes__")


def test_a_traceback_shows_the_name_that_users_import() -> None:
    """`waltz_delta.base.job_outcome` finds errors by it in what Spark reports."""
    for error in SAMPLES:
        (line,) = traceback.format_exception_only(error)
        assert line == f"waltz_log.errors.{type(error).__name__}: {error}\n"


def test_a_searched_outcome_is_searched_from_there_on_after_pickling_too() -> None:
    error = errors.OutcomeUnknown(partition=1, client_id=2, sequence=3, since=4, reason="deadline")
    for searched, since in ((9, 9), (7, 9)):
        error.searched(searched)
        assert (error.since, error.facts["since"], pickle.loads(pickle.dumps(error)).since) == (since, since, since)


def test_an_unknown_setting_names_the_nearest() -> None:
    assert errors.InvalidSetting.unknown("lisen", ["listen", "name"]).nearest == "listen"
    assert errors.InvalidSetting.unknown("zzz", ["listen", "name"]).nearest is None


def test_foreign_text_is_not_an_error_of_ours() -> None:
    for text in ("", "{}", "null", "[]", '{"error": "OSError", "facts": {}}', '{"error": "LockConflict", "facts": {}}'):
        assert errors.decode(text) is None


DUMPED = re.compile(r"\b(reason|name|nearest|ended|action|principal)=")
"""Facts that are words for people: printed as `key=value` they would be a dump of fields."""


def is_sentence(message: str) -> bool:
    """Several words in front, a verb among them, facts only behind."""
    prose = re.split(r":? \w+=", message)[0]
    verbs = r"\b(is|are|was|were|belongs?|wrote|took|read|has|have|holds?|does|must|may|cannot|needs?|names?|give|there|no|not)\b"
    return DUMPED.search(message) is None and not re.match(r"\w+=", message) and len(prose.split()) >= 3 and re.search(verbs, prose) is not None


@pytest.mark.parametrize(
    "dump",
    [
        "invalid setting: name=--topic reason=or --partition is required",
        "partition=1 winner=7",
        "unavailable: reason=no owner answers within 10 s",
        "lock conflict: partition=1 winner=7",
        "broken",
    ],
)
def test_a_field_dump_is_no_sentence(dump: str) -> None:
    """What `is_sentence` is for."""
    assert not is_sentence(dump)


@pytest.mark.parametrize("error", [error for error in SAMPLES if "reason" not in error.facts], ids=lambda error: type(error).__name__)
def test_a_message_is_a_sentence_and_then_facts(error: WaltzError) -> None:
    assert is_sentence(str(error)), str(error)


@pytest.mark.parametrize("error", [error for error in SAMPLES if "reason" in error.facts], ids=lambda error: type(error).__name__)
def test_a_reason_is_printed_as_the_prose_that_it_is(error: WaltzError) -> None:
    said = type(error)(**(error.facts | {"reason": "is not what it should be"}))
    assert is_sentence(str(said)), str(said)
    assert "is not what it should be" in str(said)


def test_a_setting_is_the_subject_of_its_sentence() -> None:
    assert str(errors.InvalidSetting(name="--table", reason="is required", nearest=None)) == "--table is required"
    assert str(errors.InvalidSetting.unknown("lisen", ["listen"])) == "lisen: no such setting (did you mean listen?)"
    assert str(errors.InvalidSetting(name="", reason="give this or that", nearest=None)) == "give this or that"
