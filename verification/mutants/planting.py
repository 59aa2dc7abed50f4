"""How bugs are planted: `@bug` names a function that patches with `change`; `planted` plants one and removes it.

The bugs themselves stand in `planted.py`. Nothing here is imported by the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["BUGS", "bug", "change", "planted", "unplanted"]

BUGS: dict[str, Callable[[], None]] = {}
"""By name. Each says in its docstring what is broken."""

_undo: list[tuple[Any, str, Any]] = []


def bug(plant: Callable[[], None]) -> Callable[[], None]:
    BUGS[plant.__name__] = plant
    return plant


def change(owner: Any, name: str, to: Any) -> Any:
    """Patches an attribute until the bug is removed; the original."""
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    _undo.append((owner, name, original))
    setattr(owner, name, to)
    return original


@contextmanager
def planted(name: str) -> Iterator[None]:
    BUGS[name]()
    try:
        yield
    finally:
        while _undo:
            owner, attribute, original = _undo.pop()
            setattr(owner, attribute, original)


@contextmanager
def unplanted() -> Iterator[None]:
    """The context in which a bug is planted."""
    planted_now = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in _undo]
    for owner, attribute, original in reversed(_undo):
        setattr(owner, attribute, original)
    try:
        yield
    finally:
        for owner, attribute, changed in planted_now:
            setattr(owner, attribute, changed)
