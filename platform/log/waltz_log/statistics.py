"""Statistics: frozen snapshots whose every field declares how two of its values become one. Pure.

A statistics class is a frozen dataclass under `@snapshot`. Each field names its merge rule in its type:

    @snapshot
    @dataclass(frozen=True, slots=True)
    class CacheStatistics:
        bytes: Summed[int]
        start: Highest[int]
        name: Newest[str]
        partitions: ByKey[Mapping[int, PartitionStatistics]]

`snapshot` refuses a class with a field that declares no rule, when the module is imported. `merge` applies the rules, and nothing guesses. The
workers of a node, the status calls, the command line and files of statistics use these functions and no other.

In every rule None means "not known" and gives way to a value. All rules are associative: workers can be merged in any grouping. `commutative` says
whether their order matters as well. Sums of floats are associative as far as floats are.

JSON: a field with a default is left out where it has that default. Mappings have string keys, tuples become lists, enumerations their values.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from enum import Enum
from functools import cache, reduce
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints  # Any: any field

from waltz_log.errors import ProtocolViolation

__all__ = [
    "BY_KEY",
    "CONCATENATE",
    "FIELDS",
    "LAST",
    "MAX",
    "MIN",
    "SUM",
    "ByKey",
    "Concatenated",
    "Fieldwise",
    "Highest",
    "Lowest",
    "Newest",
    "Rule",
    "Summed",
    "by_attribute",
    "from_json",
    "merge",
    "rules_of",
    "snapshot",
    "to_json",
    "worst_of",
]

T = TypeVar("T")

# ---- rules -----------------------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """`combine`: one value of two that are known. `commutative`: their order does not matter."""

    name: str
    combine: Callable[[Any, Any], Any]
    commutative: bool

    def merge(self, one: Any, other: Any) -> Any:
        if one is None or other is None:
            return other if one is None else one
        return self.combine(one, other)


def _last(one: Any, other: Any) -> Any:
    return other


def _by_key(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    both = {**one, **other}
    return dict(sorted(both.items())) if all(type(key) is int for key in both) else both


SUM: Final = Rule("sum", operator.add, commutative=True)
"""Counts and amounts of parts that share nothing."""

MAX: Final = Rule("max", max, commutative=True)
"""Positions, and what every part reports of the whole. Of booleans: whether any is true."""

MIN: Final = Rule("min", min, commutative=True)

LAST: Final = Rule("last", _last, commutative=False)
"""The same everywhere, or true only at its time, as a rate is."""

CONCATENATE: Final = Rule("concatenate", operator.add, commutative=False)
"""Tuples of parts that share nothing, in the order of the parts."""

BY_KEY: Final = Rule("by key", _by_key, commutative=False)
"""Mappings of parts that share no key: all keys of both. Should they share one, the last value holds. Integer keys are sorted."""

FIELDS: Final = Rule("fields", lambda one, other: merge([one, other]), commutative=False)
"""Nested statistics, by the rules of their own fields."""


def worst_of(*worst_first: str) -> Rule:
    """Merges words for a state into the worst that any part reports. A word that is not listed is better than those that are."""

    def rank(word: str) -> tuple[int, str]:
        return (worst_first.index(word) if word in worst_first else len(worst_first)), word

    return Rule(f"worst of {', '.join(worst_first)}", lambda one, other: min(one, other, key=rank), commutative=True)


def by_attribute(name: str) -> Rule:
    """Tuples of statistics that one of their fields identifies: as `BY_KEY`, sorted by that field."""
    key = operator.attrgetter(name)

    def combine(one: Iterable[Any], other: Iterable[Any]) -> tuple[Any, ...]:
        found = {key(each): each for each in (*one, *other)}
        return tuple(sorted(found.values(), key=key))

    return Rule(f"by {name}", combine, commutative=False)


Summed = Annotated[T, SUM]
Highest = Annotated[T, MAX]
Lowest = Annotated[T, MIN]
Newest = Annotated[T, LAST]
Concatenated = Annotated[T, CONCATENATE]
ByKey = Annotated[T, BY_KEY]
Fieldwise = Annotated[T, FIELDS]

# ---- classes ---------------------------------------------------------------------------------------------------------------------------------------


class _Declared(NamedTuple):
    name: str
    rule: Rule
    type: Any
    default: Any


_SNAPSHOTS: Final[dict[type, tuple[_Declared, ...]]] = {}


def snapshot(cls: type[T]) -> type[T]:
    """Registers a frozen dataclass as statistics. Raises `TypeError` for one that is not frozen, and for a field without exactly one rule."""
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__qualname__} is not a frozen dataclass")
    hints = get_type_hints(cls, include_extras=True)
    _SNAPSHOTS[cls] = tuple(_declared(cls, each, hints[each.name]) for each in dataclasses.fields(cls))
    return cls


def _declared(cls: type, field: dataclasses.Field[Any], hint: Any) -> _Declared:
    rules = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Rule)]
    if len(rules) != 1:
        raise TypeError(f"{cls.__qualname__}.{field.name} declares {len(rules)} merge rules instead of one")
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return _Declared(field.name, rules[0], get_args(hint)[0], default)


def is_snapshot(cls: type) -> bool:
    return cls in _SNAPSHOTS


def rules_of(cls: type) -> dict[str, Rule]:
    """The merge rule of each field. Raises `KeyError` for a class that is not statistics."""
    return {field.name: field.rule for field in _SNAPSHOTS[cls]}


def merge(parts: Iterable[T]) -> T:
    """One of several, in their order. Raises `TypeError` if there is none, or where they are of several classes."""
    return reduce(_merged, parts)


def _merged(one: T, other: T) -> T:
    if type(one) is not type(other):
        raise TypeError(f"{type(one).__name__} and {type(other).__name__} do not merge")
    return type(one)(*(field.rule.merge(getattr(one, field.name), getattr(other, field.name)) for field in _SNAPSHOTS[type(one)]))


# ---- JSON ------------------------------------------------------------------------------------------------------------------------------------------


class _Reading(NamedTuple):
    unknown: Literal["ignore", "refuse"]
    missing: Literal["empty", "refuse"]


class _Codec(NamedTuple):
    """The codec of one type. `encode`, `decode`: None if the value is the same in JSON. `empty`: makes what a reader assumes where the field is
    missing."""

    encode: Callable[[Any], Any] | None
    decode: Callable[[Any, _Reading], Any] | None
    empty: Callable[[], Any]


_CODECS: Final[dict[type, tuple[tuple[str, Any, _Codec], ...]]] = {}


def _codecs(cls: type) -> tuple[tuple[str, Any, _Codec], ...]:
    """Name, default and codec of each field: made when first used, as a class that only merges may have fields without a JSON form."""
    found = _CODECS.get(cls)
    if found is None:
        found = _CODECS[cls] = tuple((name, default, _codec(kind)) for name, _, kind, default in _SNAPSHOTS[cls])
    return found


def to_json(value: Any) -> dict[str, Any]:
    """Statistics as what `json.dumps` writes."""
    result = {}
    for name, default, codec in _codecs(type(value)):
        found = getattr(value, name)
        if default is MISSING or found != default:
            result[name] = found if codec.encode is None or found is None else codec.encode(found)
    return result


def from_json(cls: type[T], data: Mapping[str, Any], *, unknown: Literal["ignore", "refuse"], missing: Literal["empty", "refuse"] = "refuse") -> T:
    """The inverse of `to_json`. `unknown`: what becomes of fields that the class does not have, which a newer version may send. `missing`: whether a
    field without a default may be missing, which an older version may not know; it is then 0, "", None or empty. Raises `ProtocolViolation`."""
    try:
        return _read(cls, data, _Reading(unknown, missing))
    except (AttributeError, TypeError, ValueError) as error:  # a number where a mapping is expected, a name where a number is
        raise ProtocolViolation(reason=f"not {cls.__name__}: {error}") from None


def _read(cls: type[T], data: Any, reading: _Reading) -> T:
    if not isinstance(data, Mapping):
        raise ProtocolViolation(reason=f"not {cls.__name__}: {type(data).__name__}")
    values = {}
    known = 0
    for name, default, codec in _codecs(cls):
        if name in data:
            known += 1
            value = data[name]
            values[name] = value if codec.decode is None or value is None else codec.decode(value, reading)
        elif default is not MISSING:
            values[name] = default
        elif reading.missing == "empty":
            values[name] = codec.empty()
        else:
            raise ProtocolViolation(reason=f"{cls.__name__} without {name}")
    if reading.unknown == "refuse" and known != len(data):
        raise ProtocolViolation(reason=f"{cls.__name__} has no {', '.join(sorted(data.keys() - values.keys()))}")
    return cls(**values)


@cache
def _codec(hint: Any) -> _Codec:
    """How values of a type become JSON and back. Raises `TypeError` for a type that statistics do not have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union([each for each in arguments if each is not NoneType], optional=NoneType in arguments)
    if origin is Literal:
        return _Codec(None, None, lambda: arguments[0])
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return _tuple(_codec(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments[0], _codec(arguments[1]))
    if hint in (int, float, str, bool):
        return _Codec(None, None, hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Codec(operator.attrgetter("value"), lambda value, _: _member(hint, value), lambda: next(iter(hint)))
    if isinstance(hint, type) and is_snapshot(hint):
        return _Codec(to_json, lambda value, reading: _read(hint, value, reading), lambda: _read(hint, {}, _Reading("ignore", "empty")))
    raise TypeError(f"statistics have no fields of type {hint}")


def _union(members: list[Any], *, optional: bool) -> _Codec:
    """A union of None and one type, or of statistics that a literal field distinguishes."""
    if len(members) == 1:
        codec = _codec(members[0])
        return codec._replace(empty=lambda: None) if optional else codec
    tags = {member: _tags(member) for member in members}

    def decode(value: Any, reading: _Reading) -> Any:
        for member, tag in tags.items():
            if all(value.get(name) in words for name, words in tag.items()):
                return _read(member, value, reading)
        raise ProtocolViolation(reason=f"none of {', '.join(member.__name__ for member in members)}")

    return _Codec(to_json, decode, lambda: None if optional else _codec(members[-1]).empty())


def _tags(cls: type) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(cls)
    found = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    if not is_snapshot(cls) or not found:
        raise TypeError(f"no Literal field distinguishes {cls} from the other types of its field")
    return found


def _tuple(item: _Codec) -> _Codec:
    encode, decode = item.encode, item.decode
    return _Codec(
        list if encode is None else lambda value: [encode(each) for each in value],
        (lambda value, _: tuple(value)) if decode is None else lambda value, reading: tuple(decode(each, reading) for each in value),
        tuple,
    )


def _mapping(key: Any, item: _Codec) -> _Codec:
    if key not in (int, str):
        raise TypeError(f"statistics have no mappings by {key}")
    encode, decode = item.encode, item.decode
    return _Codec(
        lambda value: {str(name): each if encode is None else encode(each) for name, each in value.items()},
        lambda value, reading: {key(name): each if decode is None else decode(each, reading) for name, each in value.items()},
        dict,
    )


def _member(enumeration: type[Enum], value: Any) -> Enum:
    try:
        return enumeration(value)
    except ValueError:
        raise ProtocolViolation(reason=f"no {enumeration.__name__}: {value}") from None
