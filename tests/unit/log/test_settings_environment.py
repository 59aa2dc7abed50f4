"""Every field of every settings class of the platform can be given by the environment, and means there what it means in a file."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from waltz_log.client import ClientSettings
from waltz_log.errors import InvalidSetting
from waltz_log.journal.settings import JournalSettings
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.server import ServerSettings
from waltz_log.settings import Settings
from waltz_log.storage import StorageSettings

ROOT = Path(__file__).parents[3]
PACKAGES = [ROOT / "platform" / "log" / "waltz_log", ROOT / "platform" / "sink" / "waltz_delta"]

COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    # What other fields must say for this one to say anything, and its value where no simple one will do.
    ("JournalSettings", "files_min"): {"files_max": 100},
    ("DecodeSettings", "columns"): {"format": "json"},
    ("DecodeSettings", "avro_schema"): {"format": "avro"},
    ("DecodeSettings", "descriptor"): {"format": "protobuf", "message": "m"},
    ("DecodeSettings", "message"): {"format": "protobuf", "descriptor": "d"},
    ("DecodeSettings", "format"): {"format": "bytes"},
    ("DecodeSettings", "timestamp_unit"): {"format": "json", "columns": "at TIMESTAMP"},
    ("DecodeSettings", "timestamp_units"): {"format": "json", "columns": "at TIMESTAMP", "timestamp_units": {"at": "ms"}},
    ("DecodeSettings", "earliest_timestamp"): {"format": "json", "columns": "at TIMESTAMP", "earliest_timestamp": "2000-01-01T00:00:00Z"},
    ("DecodeSettings", "latest_timestamp"): {"format": "json", "columns": "at TIMESTAMP", "latest_timestamp": "2100-01-01"},
    ("DecodeSettings", "numeric_strings"): {"format": "json", "columns": "n INT"},
    ("DeleteSettings", "kind"): {"where": "true"},
    ("DeleteSettings", "deleted"): {"where": "true"},
    ("DeleteSettings", "deleted_at"): {"where": "true"},
    ("DeleteSettings", "tombstones"): {"where": "true"},
    ("TargetSettings", "mode"): {"keys": ("k",)},
    ("TargetSettings", "keys"): {"mode": "upsert"},
    ("TargetSettings", "sequence"): {"mode": "upsert", "keys": ("k",)},
    ("TargetSettings", "deletes"): {"mode": "upsert", "keys": ("k",), "deletes": {"headers": [1, 2]}},
    ("TargetSettings", "history"): {"mode": "history", "keys": ("k",)},
    ("LandingSettings", "outputs"): {"outputs": [{"target": {"table": "other"}}]},
    ("PipelineSettings", "outputs"): {"outputs": [{"target": {"table": "other"}}]},
    ("LandingSettings", "unrouted"): {"unrouted": "fail"},
    ("PipelineSettings", "unrouted"): {"unrouted": "fail"},
    ("PipelineSettings", "trigger"): {"trigger": "2 seconds"},
    ("TracingSettings", "endpoint"): {"endpoint": "https://collector:4318/v1/traces"},
    ("ConsoleSettings", "listen"): {"listen": "127.0.0.1:8080"},
    ("PipelineSettings", "source"): {"source": {"cluster": "here:1/x", "partitions": "0-3"}},
}
REQUIRED: dict[str, dict[str, Any]] = {
    "LandingSettings": {"outputs": [{"target": {"table": "t"}}]},
    "PipelineSettings": {"outputs": [{"target": {"table": "t"}}], "source": {"cluster": "here:1/x"}},
    "TracingSettings": {"endpoint": "http://127.0.0.1:4318/v1/traces"},
}
NESTED: dict[str, dict[str, Any]] = {
    "DecodeSettings": {"format": "json", "columns": "tail STRING NOT NULL, leg INT"},
    "DeleteSettings": {"where": "op = 'D'"},
    "OutputSettings": {"target": {"table": "other"}},
    "TracingSettings": {"endpoint": "http://127.0.0.1:4318/v1/traces"},
    "TokenSettings": {"issuer": "i", "audience": "a", "keys": "keys.json"},
    "TlsSettings": {"certificate": "node.pem", "key": "node.key", "authorities": "authorities.pem"},
}


def _classes() -> list[type[Settings]]:
    """Every settings class in the sources, found by their text."""
    found: dict[str, type[Settings]] = {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for name in re.findall(r"^class (\w+)\(\w*Settings\):", path.read_text(), re.MULTILINE):
                module = importlib.import_module(".".join(path.relative_to(package.parent).with_suffix("").parts))
                found[name] = getattr(module, name)
    return list(found.values())


FROM_A_FILE_ALONE = {"Profiles"}
"""Read without the environment: a user's addresses have variables of their own, WALTZ_CLUSTER and WALTZ_COORDINATOR."""

CLASSES = [each for each in _classes() if each.__name__ not in FROM_A_FILE_ALONE]


FIELDS = [(cls, name) for cls in CLASSES for name in cls.model_fields]
OPTIONAL = [(cls, name) for cls, name in FIELDS if type(None) in get_args(cls.model_fields[name].annotation)]


def _id(value: Any) -> str:
    return value if isinstance(value, str) else str(value.__name__)


def _values(annotation: Any) -> Iterator[Any]:
    """Plain values that a field of the type may have, as a YAML file gives them."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kind = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if kind is Literal:
        yield from reversed(arguments)
    elif kind is bool:
        yield from (True, False)
    elif kind is int:
        yield from (2**n for n in range(40))
    elif kind is float:
        yield from (0.25, 0.75, 1.5, 20.5)
    elif kind in (str, Path):
        yield from ("some-name", "127.0.0.1:5/x")
    elif kind is UUID:
        yield "a183fca3-ed08-410a-ad31-ca0dd3380748"
    elif kind in (tuple, list, frozenset):
        yield [next(values) for values in (_values(arguments[0]), _rest(_values(arguments[0])))]
        yield [next(_values(arguments[0]))]
    elif kind is dict:
        yield {"some.key": "some value", "other": "7"}
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield _plain(kind)
    else:  # a union
        yield from (value for each in arguments if each is not type(None) for value in _values(each))


def _rest(values: Iterator[Any]) -> Iterator[Any]:
    first = next(values)
    yield from (*values, first)


def _plain(cls: type[BaseModel]) -> dict[str, Any]:
    """A nested model with something said."""
    if cls.__name__ in NESTED:
        return NESTED[cls.__name__]
    name, field = next(iter(cls.model_fields.items()))
    return {name: _sample(field)}


def _sample(field: FieldInfo) -> Any:
    """A value that the field accepts and that is not its default."""
    annotation: Any = field.annotation
    wanted: TypeAdapter[Any] = TypeAdapter(Annotated[annotation, *field.metadata] if field.metadata else annotation)
    for value in _values(annotation):
        try:
            if wanted.validate_python(value) != field.default:
                return value
        except ValidationError:
            continue
    raise AssertionError(f"no value found for {field}")


def _texts(value: Any) -> list[str]:
    """How the environment may say it."""
    if isinstance(value, list):
        flat = not any(isinstance(each, dict | list) for each in value)
        return [json.dumps(value), *([", ".join(map(str, value))] if flat else [])]
    return [json.dumps(value)] if isinstance(value, dict) else [str(value)]


def _case(cls: type[Settings], name: str) -> tuple[Any, dict[str, Any]]:
    companions = COMPANIONS.get((cls.__name__, name), {})
    value = companions[name] if name in companions else _sample(cls.model_fields[name])
    required = {
        other: _sample(field) for other, field in cls.model_fields.items() if field.is_required() and other not in REQUIRED.get(cls.__name__, {})
    }
    others = required | REQUIRED.get(cls.__name__, {}) | {other: given for other, given in companions.items() if other != name}
    if cls.__name__ == "DeleteSettings" and name not in ("headers", "where"):
        others |= {"where": "true"}
    return value, {other: given for other, given in others.items() if other != name}


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=_id)
def test_each_field_means_in_the_environment_what_it_means_in_a_file(cls: type[Settings], name: str) -> None:
    value, others = _case(cls, name)
    wanted = cls(**others, **{name: value})
    for text in _texts(value):
        found = cls.load(None, prefix="WALTZ_TEST", environment={f"WALTZ_TEST_{name.upper()}": text, "WALTZ_OTHER": "x"}, **others)
        assert found == wanted, text
        assert name in found.model_fields_set


def test_every_settings_class_is_among_those_tested() -> None:
    assert {ServerSettings, StorageSettings, ClientSettings, JournalSettings, OutboxSettings} <= set(CLASSES)
    assert len(CLASSES) >= 18
    assert len(FIELDS) > 150


@pytest.mark.parametrize(("cls", "name"), OPTIONAL, ids=_id)
def test_an_empty_value_is_none_where_none_may_be(cls: type[Settings], name: str, tmp_path: Path) -> None:
    """It overrides a file that says otherwise."""
    required = {other for other, field in cls.model_fields.items() if field.is_required()}
    others = {other: value for other, value in _case(cls, name)[1].items() if other in required}
    if cls.__name__ == "DeleteSettings":  # one of two must be given
        others |= {"headers": (1,)}
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({name: "what the file says"}))
    found = cls.load(file, prefix="WALTZ_TEST", environment={f"WALTZ_TEST_{name.upper()}": ""}, **others)
    assert getattr(found, name) is None


def test_an_empty_sequence_overrides_a_file(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("coordinator: here:1/x\npreferred_partitions: [1, 2]\n")
    assert ServerSettings.load(file, prefix="W", environment={"W_PREFERRED_PARTITIONS": ""}).preferred_partitions == ()
    assert ServerSettings.load(file, prefix="W", environment={"W_PREFERRED_PARTITIONS": "7"}).preferred_partitions == (7,)


@pytest.mark.parametrize(
    ("variable", "text"),
    [("W_PREFERRED_PARTITIONS", "0,x"), ("W_PREFERRED_PARTITIONS", "[0, 1"), ("W_BLOCK_BYTES_MAX", "many"), ("W_BLOCK_BYTES", "1")],
)
def test_an_error_names_the_variable(variable: str, text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        ServerSettings.load(None, prefix="W", environment={variable: text}, coordinator="here:1/x")
    assert refused.value.name.startswith(variable)


def test_an_option_is_not_blamed_on_the_variable_that_it_overrides() -> None:
    with pytest.raises(InvalidSetting) as refused:
        ServerSettings.load(None, prefix="W", environment={"W_WORKERS": "2"}, coordinator="here:1/x", workers=0)
    assert refused.value.name == "workers"
