"""`waltz config show`: the settings that a component would start with, each with its origin. Starts nothing and contacts nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final  # Any: values of any setting

from pydantic import BaseModel

from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.cli.support.redaction import redacted, redacted_text
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK, USAGE
from waltz_log.settings import Settings

__all__ = ["COMPONENTS", "ShownSetting", "plain", "settings_of", "show"]

COMPONENTS: Final = ("server", "storage", "console", "client", "journal")


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """`origin`: default, file, or the name of the variable; `not set` for a required setting that is missing."""

    setting: str
    value: Any
    origin: str
    default: Any


def show(component: str, config: Path | None, *, changed: bool, output: str, environment: Mapping[str, str] = os.environ) -> int:
    """Exit code 2 and a sentence if the component would refuse to start with them. Raises `InvalidSetting` for a file that cannot be read."""
    model, prefix = _model(component)
    shown, problem = settings_of(model, config, prefix=prefix, environment=environment)
    reason = None if problem is None else redacted_text(str(problem))
    if changed:
        shown = [each for each in shown if each.origin != "default"]
    if output != "table":
        print_data({"component": component, "settings": [asdict(each) for each in shown], "problem": reason}, output)
    else:
        print_table(
            ("setting", "value", "origin", "default"), [(each.setting, _text(each.value), each.origin, _text(each.default)) for each in shown]
        )
        if reason is not None:
            print_line(f"a {component} does not start with them: {reason}")
    return OK if reason is None else USAGE


def _model(component: str) -> tuple[type[Settings], str]:
    if component == "server":
        from waltz_log.server import ServerSettings

        return ServerSettings, "WALTZ_SERVER"
    if component == "storage":
        from waltz_log.storage.base.settings import StorageSettings

        return StorageSettings, "WALTZ_STORAGE"
    if component == "console":
        from waltz_log.console.settings import ConsoleSettings

        return ConsoleSettings, "WALTZ_CONSOLE"
    if component == "client":
        from waltz_log.client import ClientSettings

        return ClientSettings, "WALTZ_CLIENT"
    if component == "journal":
        from waltz_log.journal import JournalSettings

        return JournalSettings, "WALTZ_JOURNAL"
    raise InvalidSetting.unknown(component, COMPONENTS, what="component")


def settings_of(
    model: type[Settings], config: Path | None, *, prefix: str, environment: Mapping[str, str]
) -> tuple[list[ShownSetting], InvalidSetting | None]:
    """In the order of their declaration, and why they are unusable together. Raises `InvalidSetting` for a file or a variable that cannot be read."""
    given = model.given(config, prefix=prefix, environment=environment)
    problem, made = None, None
    try:
        made = model.load(config, prefix=prefix, environment=environment)
    except InvalidSetting as error:
        problem = error
    shown = []
    for name, field in model.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        if name in given:
            value, origin = (given[name].value if made is None else getattr(made, name)), given[name].origin
        else:
            value, origin = default, "not set" if field.is_required() else "default"
        shown.append(ShownSetting(name, _without_secrets(name, value), origin, _without_secrets(name, default)))
    return shown, problem


def _without_secrets(name: str, value: Any) -> Any:
    """A block of settings declares what it contains, so its name hides nothing, and neither does that of a setting that holds a path."""
    if isinstance(value, BaseModel):
        return {field: _without_secrets(field, getattr(value, field)) for field in type(value).model_fields}
    return str(value) if isinstance(value, Path) else redacted(name, plain(value))


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else json.dumps(value)
