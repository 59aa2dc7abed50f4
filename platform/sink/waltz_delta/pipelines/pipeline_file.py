"""Reads a pipeline file: from YAML to `PipelineSettings` or a list of errors, each with its line and the nearest known name.

`${NAME}` is replaced by a variable of the environment, `${NAME:-default}` with a default, `$$` by a dollar: one file serves a laptop and a cluster.
All errors of a file are found at once; each field is checked as far as possible even if another one is wrong. Starts nothing and sends no request.

An error shows what the file says and never the value of a variable: the author of a file may not be permitted to read the environment of the process
that checks it. For the same reason a variable whose name declares a secret is refused: names and tables of a correct file are shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin  # Any: values before pydantic has checked them

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_log.errors import InvalidSetting
from waltz_log.outside_text import printable
from waltz_log.settings import SECRET, Settings, shown, validation_reason
from waltz_log.untrusted_files import CONSTRUCTION_ERRORS, PIPELINE, children, compose_yaml, construction_reason, read_text

__all__ = ["Problem", "check_pipeline_file", "load_job_pipeline", "load_pipeline", "pipeline_files"]

SHOWN_MAX: Final = 60
"""Characters of a wrong value in an error."""

PROBLEMS_MAX: Final = 100
"""Errors of one file. More would not help."""

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})")

_WITHOUT_VALUES = frozenset(
    {
        *("int_parsing", "int_type", "int_from_float", "float_parsing", "float_type", "finite_number", "bool_parsing", "bool_type", "string_type"),
        *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "string_too_short", "string_too_long", "literal_error"),
    }
)
"""Kinds of validation errors whose messages state the rule and never the value."""


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
        text = read_text(path, PIPELINE)
    except OSError as error:
        return None, [Problem(1, "", f"cannot be read: {error.strerror}")]
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
        self._written: dict[int, str] = {}
        """By id of a scalar whose value contains that of a variable: what the file says."""
        self.problems: list[Problem] = []

    def read(self, text: str) -> PipelineSettings | None:
        try:
            self._loader = loader = yaml.SafeLoader(text)
            root = compose_yaml(loader)
            if root is None:
                self._wrong(None, (), "is empty")
                return None
            self._substitute(root, set())
            found: PipelineSettings | None = self._model(PipelineSettings, root, ())
            return found
        except (yaml.YAMLError, *CONSTRUCTION_ERRORS) as error:
            mark = getattr(error, "problem_mark", None)
            reason = construction_reason(error)
            self.problems.append(Problem(mark.line + 1 if mark is not None else 1, "", f"is not YAML: {reason}"))
            return None

    def _wrong(self, node: yaml.Node | None, where: tuple[str, ...], reason: str, nearest: str | None = None) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            line = node.start_mark.line + 1 if node is not None else 1
            self.problems.append(Problem(line, printable(".".join(where)), printable(reason), nearest))

    def _substitute(self, node: yaml.Node, seen: set[int]) -> None:
        """Inserts the environment's values; a plain scalar is then parsed again as a number or boolean."""
        if id(node) in seen:  # an alias: once is enough
            return
        seen.add(id(node))
        for child in children(node):
            self._substitute(child, seen)
        if isinstance(node, yaml.ScalarNode) and "$" in node.value:
            written = node.value
            node.value = _VARIABLE.sub(lambda found: self._value_of(node, found), written)
            if node.value != written:
                self._written[id(node)] = written
            if node.style is None:
                resolve: Any = self._loader.resolve
                node.tag = resolve(yaml.ScalarNode, node.value, (True, False))

    def _value_of(self, node: yaml.Node, found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if name is None:
            return "$"
        if SECRET.search(name):
            self._wrong(node, (), f"variable {name} is not inserted: its name declares a secret, and the settings of a pipeline are shown")
            return found[0]
        if name not in self._environment and default is None:
            self._wrong(node, (), f"variable {name} is not set in the environment; set it, or write ${{{name}:-default}}")
            return found[0]
        return str(self._environment.get(name, default or ""))

    def _as_written(self, node: yaml.Node) -> Any:
        """The value with the names of variables instead of their values; None if it contains no variable."""
        if isinstance(node, yaml.ScalarNode):
            return self._written.get(id(node))
        found = {id(each): self._as_written(each) for each in children(node)}
        if all(each is None for each in found.values()):
            return None

        def value(child: yaml.Node) -> Any:
            written = found[id(child)]
            return self._loader.construct_object(child, deep=True) if written is None else written

        return {value(key): value(each) for key, each in node.value} if isinstance(node, yaml.MappingNode) else [value(each) for each in node.value]

    def _hidden(self, node: yaml.Node, text: str) -> str:
        """Without the values of variables within the node."""
        within = [node]
        for each in within:
            within += children(each)
        values = {str(each.value): self._written[id(each)] for each in within if id(each) in self._written and each.value}
        for value in sorted(values, key=len, reverse=True):
            text = text.replace(value, values[value])
        return text

    def _model(self, model: type[Settings], node: yaml.Node, where: tuple[str, ...]) -> Any:
        """An instance, or None with its problems recorded."""
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, where, f"must be settings, as in {next(iter(model.model_fields))}: …")
            return None
        known_before = len(self.problems)
        values: dict[str, Any] = {}
        places: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self._written.get(id(key), str(key.value))[:SHOWN_MAX] if isinstance(key, yaml.ScalarNode) else f"({key.id})"
            if id(key) in self._written:
                self._wrong(key, (*where, name), "a variable gives a value, not the name of a setting")
            elif name in places:
                self._wrong(key, (*where, name), f"is set twice, first in line {places[name].start_mark.line + 1}")
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
            self._wrong(places.get(error.name, node), (*where, error.name) if error.name else where, self._hidden(node, error.reason))
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
                    self._wrong(node, where, "must be a list")
                    return None
                return tuple(self._model(get_args(kind)[0], each, (*where, str(number))) for number, each in enumerate(node.value))
        written = self._as_written(node)
        try:
            value = self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, *CONSTRUCTION_ERRORS):
            if written is None:
                raise
            self._wrong(node, where, f"is not a value of YAML, from {shown(written, SHOWN_MAX)}")
            return None
        annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        checked = TypeAdapter[Any](annotation)
        try:
            return checked.validate_python(value)
        except (ValidationError, InvalidSetting) as error:
            if written is None:
                self._refused(node, where, error)
            elif isinstance(error, ValidationError) and all(found["type"] in _WITHOUT_VALUES and not found["loc"] for found in error.errors()):
                for found in error.errors(include_url=False):
                    self._wrong(node, where, f"{validation_reason(found['msg'])}, got the value of {shown(written, SHOWN_MAX)}")
            else:
                self._refused_as_written(node, where, checked, written)
            return value

    def _refused(self, node: yaml.Node, where: tuple[str, ...], error: ValidationError | InvalidSetting) -> None:
        if isinstance(error, InvalidSetting):  # an option of the source
            keys = {str(key.value).lower(): key for key, _ in node.value} if isinstance(node, yaml.MappingNode) else {}
            self._wrong(keys.get(error.name.lower(), node), (*where, error.name), error.reason, error.nearest)
            return
        for found in error.errors(include_url=False):
            reason = validation_reason(found["msg"])
            given = "" if "got" in reason else f", got {shown(found['input'], SHOWN_MAX)}"
            self._wrong(node, (*where, *(str(part) for part in found["loc"])), f"{reason}{given}")

    def _refused_as_written(self, node: yaml.Node, where: tuple[str, ...], checked: TypeAdapter[Any], written: Any) -> None:
        """Reports why the text of the file would be refused in the place of the value, which no message may contain."""
        try:
            checked.validate_python(written)
        except (ValidationError, InvalidSetting) as error:
            self._refused(node, where, error)
        else:
            self._wrong(node, where, f"is refused with the environment's value of {shown(written, SHOWN_MAX)}")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
