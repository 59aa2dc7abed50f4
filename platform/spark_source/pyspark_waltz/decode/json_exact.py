"""One JSON document, parsed without losing anything: numbers keep their text. For documents that the fast decoder does not accept.

A document is UTF-8 without a byte order mark, one object, at most `DEPTH_MAX` levels deep. Of two equal names in an object the last one counts, as in
the fast decoder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final  # Any: a JSON value

import numpy as np

from pyspark_waltz.decode.problems import Refused

__all__ = ["DEPTH_MAX", "NOT_AN_OBJECT", "Number", "compact", "is_deep", "java_double", "parse", "parse_value", "text_of"]

DEPTH_MAX: Final = 256
"""Most levels of arrays and objects: far more than real documents have, and within Python's limit for recursion."""

NOT_AN_OBJECT: Final = "is not one JSON object"
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Also a string that does not end, so that each character is read once."""
_HALF: Final = re.compile(r"[\ud800-\udfff]")
_STEPS: Final = np.zeros(256, dtype=np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7


@dataclass(frozen=True, slots=True)
class Number:
    text: str
    whole: bool
    """Whether it has neither a fraction nor an exponent."""


def is_deep(data: bytes) -> bool:
    """Whether a document nests deeper than `DEPTH_MAX`. Of text that is no JSON it may be false."""
    bare = _STRING.sub(b"", data)
    return int(np.cumsum(_STEPS[np.frombuffer(bare, dtype=np.uint8)], dtype=np.int64).max(initial=0)) > DEPTH_MAX


def parse(data: bytes) -> dict[str, Any]:
    """The object: None, bool, str, `Number`, list and dict. Raises `Refused` with the reason."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise Refused("begins with a byte order mark, which JSON does not allow")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("is not UTF-8") from None
    if is_deep(data):
        raise Refused(f"nests deeper than {DEPTH_MAX} levels")
    try:
        found = parse_value(text)
    except json.JSONDecodeError as error:
        raise Refused(f"{NOT_AN_OBJECT}: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:  # of what is no JSON, so that its depth was not seen
        raise Refused(f"nests deeper than {DEPTH_MAX} levels") from None
    if not isinstance(found, dict):
        raise Refused(f"{NOT_AN_OBJECT}, but {_NAMES[type(found)]}")
    if "\\u" in text:
        _refuse_halves(found)
    return found


_NAMES: Final = {list: "an array", str: "a string", Number: "a number", bool: "a boolean", type(None): "null"}


def _whole(text: str) -> Number:
    return Number(text, whole=True)


def _fraction(text: str) -> Number:
    return Number(text, whole=False)


def _constant(name: str) -> object:
    raise Refused(f"{NOT_AN_OBJECT}: {name} is not a JSON value")


_JSON: Final = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_constant)


def parse_value(text: str) -> Any:
    """Any value. Raises `json.JSONDecodeError`."""
    return _JSON.decode(text)


def _refuse_halves(value: Any) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            if _HALF.search(each):
                raise Refused("holds half of a surrogate pair (such as \\ud800 alone), which is not a character")
        elif isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list):
            waiting += each


def text_of(value: Any) -> str:
    """The text of a value in a STRING column: a string as it is, anything else as compact JSON. A number with a fraction or an exponent is shown as
    Java shows a double."""
    return value if isinstance(value, str) else compact(value, _double)


def compact(value: Any, fraction: Callable[[str], str]) -> str:
    """Compact JSON. `fraction` gives the text of a number that is not whole."""
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{encode_basestring(name)}:{compact(each, fraction)}" for name, each in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([compact(each, fraction) for each in value]) + "]"
    if isinstance(value, Number):
        return value.text if value.whole else fraction(value.text)
    return {None: "null", True: "true", False: "false"}[value]


def _double(text: str) -> str:
    value = float(text)
    return text if math.isinf(value) else java_double(value)


def java_double(value: float) -> str:
    """As `Double.toString`: plain from 0.001 to below 10,000,000, otherwise with an exponent, and always with a digit after the point."""
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return repr(value)
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:  # Python shows it without one
        digits, _, exponent = f"{value:.17e}".partition("e")
        for precision in range(17):
            shorter = f"{value:.{precision}e}"
            if float(shorter) == value:
                digits, _, exponent = shorter.partition("e")
                break
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"
