"""Appends that did not succeed: the outcome of the transaction."""

from __future__ import annotations

from dataclasses import field

from waltz_log.errors.base import WaltzError
from waltz_log.exit_codes import CONFLICT, UNAVAILABLE

__all__ = ["GaveUp", "GaveUpOnConflict", "LockConflict", "NotAppended", "OutcomeUnknown", "QuotaExceeded"]


class LockConflict(WaltzError):
    """Decided: the transaction is not in the log. Transaction `winner` wrote one of its locks first.

    To do: read the feed up to `winner`, and decide again. The same call, with the same mark, meets the same conflict."""

    text = "lock conflict: a newer transaction wrote one of the locks; read up to the winner and decide again"
    exit_code = CONFLICT
    partition: int
    winner: int


class GaveUpOnConflict(LockConflict):
    """A transactional function, a context or an intent met a conflict at its last attempt. It is not in the log. `winner` is the transaction that won
    last. `limit` is what ended the retries: `attempts`, `timeout_s` or `closed` (the client).

    To do: if `attempts` is high and `elapsed_s` is short, many clients write the same locks: lock less, or serialize the clients. Otherwise raise
    the limit."""

    text = "gave up: newer transactions wrote the locks at each attempt; raise the limit, or name fewer locks that others write"
    retriable = True
    attempts: int
    elapsed_s: float
    limit: str


class NotAppended(WaltzError):
    """Decided: the transaction is not in the log, for a reason that is not a lock.

    To do: append it again if it still makes sense."""

    text = "not appended"
    retriable = True
    exit_code = UNAVAILABLE
    partition: int
    reason: str


class GaveUp(NotAppended):
    """A transactional function, a context or an intent was not appended after `attempts` attempts. It is not in the log. `reason` is of the last
    attempt. `winner` is the transaction that won the last conflict; None if there was none. `limit` is what ended the retries: `attempts`,
    `timeout_s`, `retry_budget` or `closed` (the client).

    To do: append it again if it still makes sense, or raise the limit."""

    text = "gave up: not appended"
    attempts: int
    elapsed_s: float
    winner: int | None
    limit: str


class QuotaExceeded(NotAppended):
    """The principal does more in the topic than its quota allows. Nothing of the call is in the log. `quota` names the limit, as in the settings of
    the node; `topic` is empty for a partition of no topic; `partition` is -1 for a limit of the whole node. The client has waited within the
    deadline.

    To do: append it again after `retry_after_s`, or ask an operator for a higher quota."""

    text = "quota exceeded"
    advice = "append it again after retry_after_s, or ask an operator for a higher quota"
    reason: str = field(init=False, default="quota exceeded")
    partition: int
    quota: str
    principal: str
    topic: str
    retry_after_s: float

    def _message(self) -> str:
        who = f"principal {self.principal}" if self.principal else "a client without a principal"
        where = f"topic {self.topic}" if self.topic else f"partition {self.partition}" if self.partition >= 0 else "this node"
        return f"{self.text}: {who} does more in {where} than its quota allows: quota={self.quota} retry_after_s={self.retry_after_s} ({self.advice})"


class OutcomeUnknown(WaltzError):
    """The transaction may be in the log or not. `since` is the transaction id above which the log has to be searched for it. `count` is above 1 if
    the error is for several transactions of a bulk append, with consecutive sequences from `sequence`. `ticket` proves that the client id is this
    principal's, so that another process of the principal may resolve the error.

    To do: call `client.resolve`, or `client.resolve_range` if `count` is above 1. It reads the outcome from the log. Do not guess."""

    text = "outcome unknown"
    outcome = "unknown"
    advice = "ask resolve, which reads it from the log"
    exit_code = UNAVAILABLE
    partition: int
    client_id: int
    sequence: int
    since: int
    count: int = 1
    reason: str
    ticket: str = ""

    def _message(self) -> str:
        return super()._message().replace(f" ticket={self.ticket}", "")

    def part(self, offset: int, count: int) -> OutcomeUnknown:
        """The same of `count` of its transactions, from place `offset` among them."""
        return OutcomeUnknown(
            partition=self.partition,
            client_id=self.client_id,
            sequence=self.sequence + offset,
            since=self.since,
            count=count,
            reason=self.reason,
            ticket=self.ticket,
        )

    def searched(self, transaction_id: int) -> None:
        """The log was searched up to this transaction, and the append was not found: the next search begins above it."""
        vars(self)["since"] = max(self.since, transaction_id)  # the only change to a field: fields are read-only for all other code
