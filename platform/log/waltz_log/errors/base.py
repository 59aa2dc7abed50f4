"""The base of all errors: typed fields, the message, and how an error is copied.

A subclass declares its fields as annotations and is a dataclass without a decorator:

    class NotOwner(Unavailable):
        partition: int
        reason: str

mypy then checks each `NotOwner(partition=..., reason=...)` for missing, unknown and mistyped fields. Fields are keyword-only. For mypy they are also
read-only. At run time no class can be frozen, because `contextlib` sets `__traceback__` on exceptions. A subclass that gives a parent's field a
fixed value declares it with `field(init=False, default=...)`: callers cannot pass it, and messages and `facts` leave it out.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias, dataclass_transform  # Any: the constructors of subclasses differ

from waltz_log.exit_codes import DEFECT, MACHINE

__all__ = ["Fact", "Outcome", "WaltzError", "exit_code_of", "rebuild"]

Fact: TypeAlias = str | int | float | None
"""What a field holds: a value that JSON can carry."""
Outcome: TypeAlias = Literal["none", "unknown"]


@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True, field_specifiers=(field,))
class WaltzError(Exception):
    """Base of all errors. Raise a subclass."""

    text: ClassVar[str] = "failed"
    """The beginning of the message."""
    prose: ClassVar[str] = "reason"
    """The field that is a sentence, or the rest of one; it follows `text`."""
    outcome: ClassVar[Outcome] = "none"
    """Whether the failed call may have had an effect."""
    retriable: ClassVar[bool] = False
    """Whether the same call can succeed later."""
    advice: ClassVar[str] = ""
    """The end of the message, in parentheses."""
    exit_code: ClassVar[int] = DEFECT
    """For a command that ends with this error. Subclasses inherit it."""

    alternatives: ClassVar[tuple[str, ...]] = ()
    """Fields that stand for the rest of the message where they are given."""

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False, repr=False, match_args=False)(cls)
        # A class that declares an inherited field again moves it: messages show the fields in the order of the class itself.
        order: dict[str, None] = {}
        for base in reversed(cls.__mro__):
            for name in inspect.get_annotations(base):
                order.pop(name, None)
                order[name] = None
        given = {each.name for each in fields(cls) if each.init}  # type: ignore[arg-type]  # a dataclass since the line above
        cls._names = tuple(name for name in order if name in given)

    def __post_init__(self) -> None:
        super().__init__(self._message())

    @property
    def facts(self) -> dict[str, Fact]:
        """The fields that the caller passed, by name."""
        return {name: getattr(self, name) for name in self._names}

    def _message(self) -> str:
        facts = self.facts
        reason = str(facts.pop(self.prose, None) or "")
        values = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        parts = (self.text, reason, values)
        return ": ".join(part for part in parts if part) + (f" ({self.advice})" if self.advice else "")

    def __reduce__(self) -> tuple[object, ...]:
        notes = getattr(self, "__notes__", None)
        return (rebuild, (type(self), self.facts), {"__notes__": list(notes)} if notes else None)


def rebuild(cls: type[WaltzError], facts: dict[str, Any]) -> WaltzError:
    """The error of that class with these fields. For facts that come from a pickle or from the wire, whose types mypy cannot see; `TypeError` where
    a field is missing or unknown."""
    create: Any = cls
    error: WaltzError = create(**facts)
    return error


def exit_code_of(error: WaltzError | OSError) -> int:
    """The exit code of a command that ends with this error."""
    return error.exit_code if isinstance(error, WaltzError) else MACHINE
