"""Every setting of a pipeline file as a row of a table, for `docs/guides/pipelines.md`: `python -m waltz_delta.pipelines.pipeline_doc` prints it, and
a test compares both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from waltz_delta.pipelines.metrics import METRICS
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.settings import Settings

__all__ = ["metrics_table", "settings_table"]

ORDER = ("name", "source", "checkpoint", "trigger", "outputs", "dead_letters", "unrouted", "restart")
"""The order in which a file is usually written; other settings come last."""


def settings_table() -> str:
    lines = ["| setting | values | default | how to choose |", "|---|---|---|---|"]
    for path, field in _fields(PipelineSettings, ""):
        default = "required" if field.is_required() else _shown(field.default)
        lines.append(f"| `{path}` | {_values(field.annotation)} | {default} | {_escaped(field.description or '')} |")
    return "\n".join(lines)


def metrics_table() -> str:
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{metric.name}` | {metric.kind} | {metric.meaning} |" for metric in METRICS)])


def _fields(model: type[Settings], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    names = sorted(model.model_fields, key=lambda name: ORDER.index(name) if model is PipelineSettings and name in ORDER else len(ORDER))
    for name in names:
        field = model.model_fields[name]
        inner, many = _settings_in(field.annotation)
        yield f"{prefix}{name}", field
        if inner is not None:
            yield from _fields(inner, f"{prefix}{name}{'[]' if many else ''}.")


def _settings_in(annotation: Any) -> tuple[type[Settings] | None, bool]:
    for kind in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind, False
        if get_origin(kind) is tuple and isinstance(get_args(kind)[0], type) and issubclass(get_args(kind)[0], Settings):
            return get_args(kind)[0], True
    return None, False


def _values(annotation: Any) -> str:
    kinds = [kind for kind in (get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)) if kind is not NoneType]
    parts = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            parts.append(", ".join(f"`{value}`" for value in get_args(kind)))
        elif get_origin(kind) is tuple:
            parts.append("list" if _settings_in(kind)[0] is not None else f"list of {_name(get_args(kind)[0])}")
        elif get_origin(kind) is dict:
            parts.append("mapping")
        else:
            parts.append("settings" if isinstance(kind, type) and issubclass(kind, Settings) else _name(kind))
    return " or ".join(parts)


def _name(kind: Any) -> str:
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "datetime": "time or date"}.get(
        getattr(kind, "__name__", ""), str(kind)
    )


def _shown(value: Any) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, datetime):
        return f"`{value.isoformat().replace('+00:00', 'Z')}`"
    return "see below" if isinstance(value, Settings) else f"`{value}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(f"{settings_table()}\n\n{metrics_table()}")
