"""The base of all settings: frozen values, unknown keys refused with the nearest known one, read from YAML, then environment, then arguments.

Each component declares its own model next to its code (`storage/base/settings.py`, `server/base/settings.py`, `client/base/settings.py`). Every
field says how to choose it; units are last in its name.

Every field can be given by the environment, whatever its type. A sequence is its elements separated by commas (`0,1,2`), or YAML (`[0, 1, 2]`); a
mapping or a nested model is YAML, of which JSON is a part (`{a: 1}`). An empty value is None if the field may be None, and an empty sequence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Self, Union, get_args, get_origin  # Any: values before pydantic has checked them

from pydantic import BaseModel, ConfigDict, ValidationError

from waltz_log.errors import InvalidSetting
from waltz_log.untrusted_files import SETTINGS, load_yaml, read_text

__all__ = ["SECRET", "Given", "Settings", "shown", "validation_reason"]

SECRET: Final = re.compile(
    r"password|passwd|passphrase|pwd|secret|token|credential|authorization|cookie|signature"
    r"|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|shared[_-]?access|sas[_-]?key",
    re.IGNORECASE,
)
"""A setting or a variable whose name contains this holds a secret: its value is not shown."""

SHOWN_MAX: Final = 80
"""Characters of a wrong value in a message; the rest says no more."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as a file or the environment gives it. `variable`: its name; None if the value is from the file."""

    value: Any
    variable: str | None = None

    @property
    def origin(self) -> str:
        return "file" if self.variable is None else self.variable


class Settings(BaseModel):
    """`load` is the only way processes build settings; tests and applications may call the class."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    mistaken: ClassVar[Mapping[str, str]] = {}
    """Names that people confuse with a setting, although they are not alike, with that setting."""

    def __init__(self, **values: Any) -> None:
        unknown = sorted(set(values) - set(type(self).model_fields))
        if unknown:
            raise type(self)._unknown(unknown[0])
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InvalidSetting(
                name=".".join(str(part) for part in first["loc"]), reason=_reason(first["msg"], first.get("input")), nearest=None
            ) from None

    @classmethod
    def load(cls, path: Path | None, *, prefix: str, environment: Mapping[str, str] = os.environ, **arguments: Any) -> Self:
        """Values from the YAML file, overridden by `<PREFIX>_<NAME>` in the environment, overridden by arguments that are not None."""
        found = cls.given(path, prefix=prefix, environment=environment)
        given = {name: value for name, value in arguments.items() if value is not None}
        try:
            return cls(**({name: each.value for name, each in found.items()} | given))
        except InvalidSetting as error:
            field, _, rest = error.name.partition(".")
            variable = found[field].variable if field in found else None
            if variable is None or field in given:
                raise
            raise InvalidSetting(name=variable + (f".{rest}" if rest else ""), reason=error.reason, nearest=error.nearest) from None

    @classmethod
    def given(cls, path: Path | None, *, prefix: str, environment: Mapping[str, str] = os.environ) -> dict[str, Given]:
        """What the file and the environment say, before it is validated. Raises `InvalidSetting` for a file that cannot be read or holds no mapping,
        and for a variable with the prefix that is no setting."""
        values: dict[str, Given] = {}
        if path is not None:
            try:
                found = load_yaml(read_text(path, SETTINGS))
            except OSError as error:
                raise InvalidSetting(name=str(path), reason=f"cannot be read: {error.strerror}", nearest=None) from None
            except ValueError as error:
                raise InvalidSetting(name=str(path), reason=f"is not YAML: {error}", nearest=None) from None
            if not isinstance(found, dict | None):
                raise InvalidSetting(name=str(path), reason="must hold a mapping", nearest=None)
            for name in found or ():
                if not isinstance(name, str):
                    raise InvalidSetting(name=shown(name), reason=f"is not a setting's name in {path}", nearest=None)
            values |= {name: Given(value) for name, value in (found or {}).items()}
        start = f"{prefix}_"
        for name, text in environment.items():
            if name.startswith(start):
                key = name.removeprefix(start).lower()
                if key not in cls.model_fields:
                    raise cls._unknown(name, start)
                values[key] = Given(_parse_variable(name, text, cls.model_fields[key].annotation), name)
        return values

    @classmethod
    def _unknown(cls, name: str, prefix: str = "") -> InvalidSetting:
        """`prefix`: of the variables, if it is the name of one."""
        names = {known: prefix + known.upper() if prefix else known for known in cls.model_fields}
        meant = cls.mistaken.get(name.removeprefix(prefix).lower() if prefix else name)
        return InvalidSetting.unknown(name, names.values(), meant=None if meant is None else names[meant])


def _reason(message: str, given: Any) -> str:
    quoted = isinstance(given, str | int | float) and "got" not in message and message != "Field required"
    return validation_reason(message) + (f", not {shown(given)}" if quoted else "")


def shown(value: Any, length: int = SHOWN_MAX) -> str:
    """A wrong value for a message. Python refuses to write out a number of thousands of digits, also inside of a list."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= length else f"{text[: length - 3]}..."


def validation_reason(message: str) -> str:
    """The reason in pydantic's message: what the setting must be, with the setting as its subject."""
    if message == "Field required":
        return "is required"
    message = re.sub(r"^\w+ should ", "must ", message.removeprefix("Value error, "))
    return message[:1].lower() + message[1:]


def _parse_variable(name: str, text: str, annotation: Any) -> Any:
    """Parses the text of a variable for the field's validation. Raises `InvalidSetting` with the variable's name if it is not YAML."""
    kinds, optional = _kinds(annotation)
    if optional and not text:
        return None
    sequence = any(kind in (tuple, list, set, frozenset) for kind in kinds)
    nested = any(kind is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)) for kind in kinds)
    if sequence and not text.lstrip().startswith(("[", "{")):
        return [each.strip() for each in text.split(",")] if text.strip() else []
    if not sequence and not nested:
        return text
    try:
        return load_yaml(text)
    except ValueError as error:
        raise InvalidSetting(name=name, reason=f"is not YAML: {error}", nearest=None) from None


def _kinds(annotation: Any) -> tuple[list[Any], bool]:
    """The types that a field accepts, without their parameters, and whether None is one of them."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [get_origin(each) or each for each in members if each is not NoneType], NoneType in members
