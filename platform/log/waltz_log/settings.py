"""The base of all settings: frozen values, unknown keys refused with the nearest known one, read from YAML, then environment, then arguments.

Each component declares its own model beside its code (`storage/settings.py`, `server/settings.py`, `client/settings.py`). Every field says how
to choose it; units stand last in its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from waltz_log.errors import InvalidSetting

__all__ = ["Settings"]


class Settings(BaseModel):
    """`load` is the only way processes build settings; tests and applications may call the class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        unknown = sorted(set(values) - set(type(self).model_fields))
        if unknown:
            raise InvalidSetting.unknown(unknown[0], type(self).model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            told = first["msg"]
            raise InvalidSetting(name=".".join(str(part) for part in first["loc"]), reason=told[:1].lower() + told[1:], nearest=None) from None

    @classmethod
    def load(cls, path: Path | None, *, prefix: str, environment: Mapping[str, str] = os.environ, **arguments: Any) -> Self:
        """Values from the YAML file, overridden by `<PREFIX>_<NAME>` in the environment, overridden by arguments that are not None."""
        values: dict[str, Any] = {}
        if path is not None:
            try:
                found = yaml.safe_load(path.read_text(encoding="utf-8"))
            except OSError as error:
                raise InvalidSetting(name=str(path), reason=f"cannot be read: {error.strerror}", nearest=None) from None
            except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # a date that is none, bytes that are no text, nests
                raise InvalidSetting(name=str(path), reason=f"is not YAML: {error}".replace("\n", " "), nearest=None) from None
            if not isinstance(found, dict | None):
                raise InvalidSetting(name=str(path), reason="must hold a mapping", nearest=None)
            for name in found or ():
                if not isinstance(name, str):
                    raise InvalidSetting(name=str(name), reason=f"is not a setting's name in {path}", nearest=None)
            values |= found or {}
        start = f"{prefix}_"
        for name, value in environment.items():
            if name.startswith(start):
                key = name.removeprefix(start).lower()
                if key not in cls.model_fields:
                    raise InvalidSetting.unknown(name, [start + known.upper() for known in cls.model_fields])
                values[key] = value
        values |= {name: value for name, value in arguments.items() if value is not None}
        return cls(**values)
