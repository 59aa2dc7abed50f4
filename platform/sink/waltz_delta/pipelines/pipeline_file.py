"""Reads a pipeline file: from YAML to `PipelineSettings` or a list of errors, each with its line and the nearest known name.

`${NAME}` is replaced by a variable of the environment, `${NAME:-default}` with a default, `$$` by a dollar: one file serves a laptop and a cluster.
All errors of a file are found at once; each field is checked as far as possible even if another one is wrong. Starts nothing and sends no request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin  # Any: values before pydantic has checked them

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.errors import InvalidSetting
from waltz_log.settings import Settings, validation_reason

__all__ = ["Problem", "check_pipeline_file", "load_job_pipeline", "load_pipeline", "pipeline_files"]

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")


@dataclass(frozen=True, slots=True)
class Problem:
    """`where` is the dotted path of the setting, empty for the file as a whole; `line` counts from 1."""

    line: int
    where: str
    reason: str
    nearest: str | None = None

    def __str__(self) -> str:
        near = f" (did you mean {self.nearest}?)" if self.nearest else ""
        return f"{self.line}: {f'{self.where}: ' if self.where else ''}{self.reason}{near}"


def pipeline_files(paths: list[Path]) -> list[Path]:
    """The files, and the .yaml files of every directory among them."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    return found


def load_pipeline(path: Path, environment: Mapping[str, str] = os.environ) -> PipelineSettings:
    """Raises `InvalidSetting` with the first problem; `check_pipeline_file` returns all."""
    settings, problems = check_pipeline_file(path, environment)
    if problems or settings is None:
        first = problems[0]
        raise InvalidSetting(name=f"{path}:{first.line}" + (f": {first.where}" if first.where else ""), reason=first.reason, nearest=first.nearest)
    return settings


def load_job_pipeline(given: str | None) -> PipelineSettings:
    """For a job that works on one pipeline: `--pipeline` is required."""
    if not given:
        raise InvalidSetting(name="--pipeline", reason="is required", nearest=None)
    return load_pipeline(Path(given))


def check_pipeline_file(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[PipelineSettings | None, list[Problem]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        return None, [Problem(1, "", f"cannot be read: {error.strerror}")]
    except ValueError:
        return None, [Problem(1, "", "is not text in UTF-8")]
    reading = _Reading(environment)
    settings = reading.read(text)
    if settings is not None and "name" not in settings.model_fields_set:
        try:
            settings = type(settings)(**{**{name: getattr(settings, name) for name in settings.model_fields_set}, "name": path.stem})
        except InvalidSetting:
            reading.problems.append(Problem(1, "name", f"the file's name {path.stem!r} is none for a pipeline; give one"))
    return (None if reading.problems else settings), sorted(reading.problems, key=lambda problem: problem.line)


class _Reading:
    """One pass over one text."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[Problem] = []

    def read(self, text: str) -> PipelineSettings | None:
        loader = yaml.SafeLoader(text)
        try:
            self._loader = loader
            root = loader.get_single_node()
            if root is None:
                self._wrong(None, (), "is empty")
                return None
            self._substitute(root, set())
            found: PipelineSettings | None = self._model(PipelineSettings, root, ())
            return found
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            reason = " ".join(str(getattr(error, "problem", None) or error).split())
            self.problems.append(Problem(mark.line + 1 if mark is not None else 1, "", f"is not YAML: {reason}"))
            return None
        finally:
            loader.dispose()

    def _wrong(self, node: yaml.Node | None, where: tuple[str, ...], reason: str, nearest: str | None = None) -> None:
        self.problems.append(Problem(node.start_mark.line + 1 if node is not None else 1, ".".join(where), reason, nearest))

    def _substitute(self, node: yaml.Node, seen: set[int]) -> None:
        """Inserts the environment's values; a plain scalar is then parsed again as a number or boolean."""
        if id(node) in seen:  # an alias: once is enough
            return
        seen.add(id(node))
        for child in _children(node):
            self._substitute(child, seen)
        if isinstance(node, yaml.ScalarNode) and "$" in node.value:

            def value(found: re.Match[str]) -> str:
                name, default = found[1], found[2]
                if name is None:
                    return "$"
                if name not in self._environment and default is None:
                    self._wrong(node, (), f"variable {name} is not set in the environment; set it, or write ${{{name}:-default}}")
                    return found[0]
                return str(self._environment.get(name, default or ""))

            node.value = _VARIABLE.sub(value, node.value)
            if node.style is None:
                resolve: Any = self._loader.resolve
                node.tag = resolve(yaml.ScalarNode, node.value, (True, False))

    def _model(self, model: type[Settings], node: yaml.Node, where: tuple[str, ...]) -> Any:
        """An instance, or None with its problems recorded."""
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, where, f"wants settings, as in {next(iter(model.model_fields))}: …")
            return None
        known_before = len(self.problems)
        values: dict[str, Any] = {}
        places: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in places:
                self._wrong(key, (*where, name), f"is said twice, first in line {places[name].start_mark.line + 1}")
            elif name not in model.model_fields:
                unknown = InvalidSetting.unknown(name, model.model_fields)
                self._wrong(key, (*where, name), unknown.reason, unknown.nearest)
            else:
                places[name] = key
                values[name] = self._field(model.model_fields[name], value, (*where, name))
        for name, field in model.model_fields.items():
            if field.is_required() and name not in places:
                self._wrong(node, where, f"{name} is required: {(field.description or '').split('. ')[0].rstrip('.').lower()}")
        if len(self.problems) > known_before:
            return None
        try:
            return model(**values)
        except InvalidSetting as error:  # of the settings together
            self._wrong(places.get(error.name, node), (*where, error.name) if error.name else where, error.reason)
            return None

    def _field(self, field: FieldInfo, node: yaml.Node, where: tuple[str, ...]) -> Any:
        kinds = _alternatives(field.annotation)
        if NoneType in kinds and _is_null(node):
            return None
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Settings):
                return self._model(kind, node, where)
            if get_origin(kind) is tuple and isinstance(get_args(kind)[0], type) and issubclass(get_args(kind)[0], Settings):
                if not isinstance(node, yaml.SequenceNode):
                    self._wrong(node, where, "wants a list")
                    return None
                return tuple(self._model(get_args(kind)[0], each, (*where, str(number))) for number, each in enumerate(node.value))
        value = self._loader.construct_object(node, deep=True)
        checked: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        try:
            return TypeAdapter(checked).validate_python(value)
        except ValidationError as error:
            for found in error.errors(include_url=False):
                reason = validation_reason(found["msg"])
                given = "" if "got" in reason else f", got {_shown(found['input'])}"
                self._wrong(node, (*where, *(str(part) for part in found["loc"])), f"{reason}{given}")
        except InvalidSetting as error:  # an option of the source
            keys = {str(key.value).lower(): key for key, _ in node.value} if isinstance(node, yaml.MappingNode) else {}
            self._wrong(keys.get(error.name.lower(), node), (*where, error.name), error.reason, error.nearest)
        return value


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
