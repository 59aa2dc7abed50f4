"""Requests that are refused as they are: the caller has to change them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import field
from typing import Final, Self

from waltz_log.errors.base import WaltzError
from waltz_log.exit_codes import REFUSED, USAGE

__all__ = [
    "BelongsToTopic",
    "InvalidBatch",
    "InvalidRequest",
    "InvalidSetting",
    "NoSuchTopic",
    "NotAllowed",
    "PermissionDenied",
    "TopicDeleted",
    "TransactionTooLarge",
    "UnknownRecord",
]

# fmt: off
_VERBS: Final = frozenset({
    "are", "cannot", "contains", "does", "exists", "expected", "has", "have", "holds", "is", "lies", "may", "must",
    "names", "needs", "points", "saves", "says", "sets", "takes", "was", "were",
})
# fmt: on


class InvalidRequest(WaltzError):
    """The request can never succeed as it is. Nothing was sent.

    To do: fix the call."""

    text = ""
    exit_code = USAGE
    reason: str


class InvalidSetting(InvalidRequest):
    """A setting or option is unknown or unusable. Nothing was started. `nearest` is the known name that is most similar.

    To do: fix the configuration."""

    name: str
    reason: str
    nearest: str | None

    def _message(self) -> str:
        """`name` is the subject where the reason begins with a verb."""
        link = " " if self.reason.partition(" ")[0] in _VERBS else ": "
        near = f" (did you mean {self.nearest}?)" if self.nearest else ""
        return (f"{self.name}{link}{self.reason}" if self.name else self.reason) + near

    @classmethod
    def unknown(cls, name: str, known: Iterable[str], *, what: str = "setting", meant: str | None = None) -> Self:
        """The error for an unknown name, with the one that is meant, or else the nearest of the known ones, if any is near."""
        original = {k.lower(): k for k in known}
        near = difflib.get_close_matches(name.lower(), original, n=1, cutoff=0.5)
        return cls(name=name, reason=f"no such {what}", nearest=meant or (original[near[0]] if near else None))


class TransactionTooLarge(InvalidRequest):
    """One transaction is above a limit. Nothing was sent. `what` names the limit; `size` and `limit` are in its unit.

    To do: split the transaction, or raise the limit on clients and servers alike."""

    text = "the transaction is too large; split it, or raise the limit on clients and servers alike"
    what: str
    size: int
    limit: int
    reason: str = field(init=False, default="above a limit")


class InvalidBatch(InvalidRequest):
    """A row of a batch can never be appended. Nothing of the batch was sent. `row` counts from the start of the list, record batch or table; None: it
    is the whole column. `column` is `data`, or the name of the other column.

    To do: fix or leave out the row, and append the batch again."""

    text = "nothing of the batch was appended"
    row: int | None
    column: str
    reason: str


class UnknownRecord(InvalidRequest):
    """The journal holds no record or open transaction with that id, or an open transaction holds the record. Nothing was written.

    To do: fix the call."""

    text = "the journal holds no such record or transaction"
    what: str
    id: int
    reason: str = field(init=False, default="unknown")


class NoSuchTopic(InvalidRequest):
    """The catalog has no topic of that name. Nothing was sent.

    To do: correct the name, or create the topic."""

    text = "no such topic"
    topic: str
    nearest: str | None
    reason: str = field(init=False, default="unknown")

    def _message(self) -> str:
        hint = f"did you mean {self.nearest}?" if self.nearest else "`waltz topic list` shows those that there are"
        return f"{self.text}: {self.topic} ({hint})"

    @classmethod
    def among(cls, topic: str, known: Iterable[str]) -> Self:
        """With the nearest of the known names, if any is near."""
        near = difflib.get_close_matches(topic, list(known), n=1, cutoff=0.5)
        return cls(topic=topic, nearest=near[0] if near else None)


class TopicDeleted(InvalidRequest):
    """The topic was deleted while it was in use. A topic created since with the same name is a different topic. What was not sent is not in the log.

    To do: resolve the name again, or stop."""

    text = "the topic was deleted while it was in use; resolve its name again, or stop"
    topic: str
    reason: str = field(init=False, default="deleted")


class BelongsToTopic(WaltzError):
    """The log partition belongs to a topic, and the append addressed it by its number. Nothing of it is in the log.

    To do: append through `client.topic(name)`, or to a partition that belongs to no topic. A client that has to address a topic's partitions by
    number names the topic in its setting `topics`."""

    text = "the log partition belongs to a topic"
    advice = "append through client.topic(name), or to a partition of no topic"
    exit_code = REFUSED
    partition: int
    topic: str


class NotAllowed(WaltzError):
    """The topic's properties do not allow this action to the principal, or to a client without a principal. Nothing was done.

    To do: name the right principal in the settings, or ask the topic's owner."""

    text = "not allowed"
    exit_code = REFUSED
    action: str
    topic: str
    principal: str | None

    def _message(self) -> str:
        who = f"principal {self.principal}" if self.principal else "a client without a principal"
        return f"{self.text}: {who} may not {self.action}, its properties say who may: topic={self.topic}"


class PermissionDenied(NotAllowed):
    """The client's role, or the rules of access, do not permit this. Nothing was done, and nothing says whether the resource exists.

    To do: use a certificate with one of the roles, or have an operator grant the permission: `waltz access grant`."""

    text = "permission denied"
    alternatives = ("roles", "reason")
    anything = "anything"
    """The resource of a denial that is about none in particular: the principal may do it nowhere in the cluster."""
    action: str = field(init=False, default="call")
    topic: str = field(init=False, default="")
    principal: str | None
    operation: str
    resource: str = ""
    roles: str = ""
    reason: str = ""

    def naming(self, resource: str) -> PermissionDenied:
        """The error for the resource that the caller asked for, if it was denied because no rule permits the operation anywhere."""
        if self.resource != self.anything:
            return self
        return PermissionDenied(principal=self.principal, operation=self.operation, resource=resource)

    def _message(self) -> str:
        if self.reason:
            return f"{self.text}: {self.reason}"
        who = self.principal or "a client whose certificate contains no name"
        if self.roles:
            return f"{self.text}: {who} has no role for {self.operation}: roles={self.roles}"
        return f"{self.text}: no rule permits {who} to {self.operation} {self.resource}"
