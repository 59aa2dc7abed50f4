"""What an error class says about itself: what happened, what to do, its message and its fields. For `waltz explain` and docs/reference/errors.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, fields
from types import ModuleType

from waltz_log.errors.base import Outcome, WaltzError, rebuild

__all__ = ["Explanation", "error_classes", "explain_class"]

TO_DO = "To do: "


@dataclass(frozen=True, slots=True)
class Explanation:
    """`message`: with the names of the fields in place of their values; `fields`: their types, in the order of the message."""

    error: str
    parents: tuple[str, ...]
    happened: str
    to_do: str
    message: str
    fields: dict[str, str]
    outcome: Outcome
    retriable: bool
    exit_code: int


def error_classes(modules: Iterable[ModuleType]) -> list[type[WaltzError]]:
    """The error classes that the modules export, parents first."""
    found = [getattr(module, name) for module in modules for name in module.__all__]
    errors = [each for each in found if isinstance(each, type) and issubclass(each, WaltzError) and each is not WaltzError]
    return sorted(errors, key=lambda cls: [base.__name__ for base in reversed(cls.__mro__)])


def explain_class(cls: type[WaltzError]) -> Explanation:
    happened, _, to_do = inspect.cleandoc(cls.__doc__ or "").partition(TO_DO)
    declared = {each.name: str(each.type) for each in fields(cls)}  # type: ignore[arg-type]  # a dataclass, through its parent
    types = {name: declared[name] for name in cls._names}
    return Explanation(
        cls.__name__,
        tuple(base.__name__ for base in cls.__mro__[1:] if issubclass(base, WaltzError)),
        " ".join(happened.split()),
        " ".join(to_do.split()),
        str(rebuild(cls, {name: f"{{{name}}}" for name in types if name not in cls.alternatives})),
        types,
        cls.outcome,
        cls.retriable,
        cls.exit_code,
    )
