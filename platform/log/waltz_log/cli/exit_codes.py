"""What the exit code of `waltz` says: the class of what went wrong, so that scripts and supervisors can decide.

| code | meaning | what to do |
|---|---|---|
| 0 | done, or ended as asked by a signal | |
| 1 | a defect, or a check that found something | read the message |
| 2 | the command line or a setting is wrong; nothing was done | fix it |
| 3 | nobody answers, or not in time | try again |
| 4 | refused: another cluster or owner, a newer session, a topic's partition, a restored coordinator, not allowed | look at who runs what |
| 5 | a disk failed, is full or holds rot; an address cannot be bound; a worker process does not stay up | look after this machine |
| 6 | something is not installed | `waltz doctor` |
| 141 | whoever read the output closed it, as with `| head` | |
"""

from __future__ import annotations

from waltz_log import errors

__all__ = ["CLOSED_PIPE", "DEFECT", "FAILED", "LACKING", "MACHINE", "OK", "REFUSED", "UNAVAILABLE", "USAGE", "exit_code_of"]

OK = 0
DEFECT = FAILED = 1
USAGE = 2
UNAVAILABLE = 3
REFUSED = 4
MACHINE = 5
LACKING = 6
CLOSED_PIPE = 141
"""128 + SIGPIPE, as shells tell it of other programs."""


def exit_code_of(error: errors.WaltzError | OSError) -> int:
    match error:
        case errors.InvalidRequest() | errors.InvalidSetting() | errors.TransactionTooLarge() | errors.OutOfRange():
            return USAGE
        case errors.Unavailable() | errors.ClusterUnavailable() | errors.ConnectionLost() | errors.NotOwner():
            return UNAVAILABLE
        case errors.NotAppended() | errors.OutcomeUnknown():
            return UNAVAILABLE
        case (
            errors.NotAllowed()
            | errors.BelongsToTopic()
            | errors.CoordinatorBehind()
            | errors.Fenced()
            | errors.ClusterKeyMismatch()
            | errors.SessionTooOld()
            | errors.LockConflict()
            | errors.ProtocolViolation()
        ):
            return REFUSED
        case errors.StorageFailed() | errors.JournalFailed() | errors.JournalFull() | errors.CorruptData() | errors.EnvelopeBroken():
            return MACHINE
        case errors.WorkerFailed() | OSError():
            return MACHINE
        case _:
            return LACKING if type(error).__name__ in ("JavaMissing", "ZooKeeperJarsMissing") else DEFECT
