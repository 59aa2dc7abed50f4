r"""Finds JSON text that Spark's parser must not read, because it would not fail but run for minutes, or read something else.

To bring `1e99999999` to the scale of a DECIMAL, the parser builds a number of as many digits: minutes and gigabytes for ten bytes of data, and the
same again at every restart. `"\ud800"`, half of a surrogate pair, is no character, and becomes a question mark. And a DECIMAL is read from a string
as well, whatever `numeric_strings` says: this module finds texts that may hold such a string, and `decode_json` then checks the strings.

Most texts are checked by regular expressions in one pass. None of them makes Java's matcher recurse once per character.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

__all__ = ["endless_number", "half_of_a_pair", "may_hold_exponent_string", "may_hold_numeric_string"]

_ENDLESS: Final = r"[0-9][eE][+-]?[0-9]{4}"
"""Matches every such number, and sometimes a text without one."""
_NUMBER: Final = r"[0-9][eE][+-]?0*[1-9][0-9]{3}"
_ANY_ESCAPE: Final = r"(?s)\\."
_STRING: Final = r'"[^"]*+"'
"""A string in text from which escapes were removed."""

_DIGIT: Final = r"\p{Nd}|\\u[0-9a-fA-F]{4}"
"""The digits that the parser accepts in numbers: of any script, and escaped."""
_NUMERIC_STRING: Final = rf'"(?:[-+.eE]|{_DIGIT})++"(?!\s*:)'
_EXPONENT_STRING: Final = r'"[-+.\p{Nd}]*+(?:[eE]|\\u[0-9a-fA-F]{4})'
"""Matches far too often, so it is used only for a text that cannot be parsed otherwise."""

_HALF: Final = r"\\u[dD][89a-fA-F]"
_OTHER_ESCAPE: Final = r"(?s)\\[^u]"
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"


def endless_number(text: Column) -> Column:
    """Whether a number of JSON text, outside of its strings, has an exponent of more than three digits."""
    bare = f.regexp_replace(f.regexp_replace(text, _ANY_ESCAPE, ""), _STRING, "")
    return f.coalesce(text.rlike(_ENDLESS) & bare.rlike(_NUMBER), f.lit(False))


def may_hold_numeric_string(text: Column) -> Column:
    """False if no value of JSON text is a string that a DECIMAL could be read from."""
    return f.coalesce(text.rlike(_NUMERIC_STRING), f.lit(False))


def may_hold_exponent_string(text: Column) -> Column:
    """False if no string of JSON text is a number with an exponent."""
    return f.coalesce(text.rlike(_EXPONENT_STRING), f.lit(False))


def half_of_a_pair(text: Column) -> Column:
    """Whether JSON text holds an escaped surrogate without its other half, in a key or a string."""
    unpaired = f.regexp_replace(f.regexp_replace(text, _OTHER_ESCAPE, " "), _PAIR, " ")
    return f.coalesce(text.rlike(_HALF) & unpaired.rlike(_HALF), f.lit(False))
