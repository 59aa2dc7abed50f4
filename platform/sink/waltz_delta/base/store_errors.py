"""A store of a table that fails, as one sentence: what `deltalake`, pyarrow and the operating system raise becomes `StoreUnavailable`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from waltz_delta.errors import StoreUnavailable

__all__ = ["sentence", "store_errors", "store_failure_in"]

SENTENCE_MAX: Final = 300
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
"""In the answer of a store, the name of what is wrong."""
_PRINTED: Final = re.compile(rf"{StoreUnavailable.__name__}: {re.escape(StoreUnavailable.text)}: (.*): path=")


def sentence(error: BaseException) -> str:
    """An error of `deltalake` in one line, without colors, arrows and backtrace."""
    text = " ".join(_COLORS.sub("", str(error)).partition("\n  0: ")[0].replace("\u21b3", " ").split())
    code = _CODE.search(text)
    return ("" if code is None else f"{code[1]}: ") + text[:SENTENCE_MAX] or type(error).__name__


@contextmanager
def store_errors(path: str, *passing: type[Exception]) -> Iterator[None]:
    """Raises errors of the store, but `passing`, as `StoreUnavailable`."""
    try:
        yield
    except passing:
        raise
    except Exception as error:
        if not isinstance(error, OSError):  # an executor may lack `deltalake`, and raises none of its errors
            from deltalake.exceptions import DeltaError

            if not isinstance(error, DeltaError):
                raise
        raise StoreUnavailable(path=path, reason=sentence(error)) from error


def store_failure_in(text: str) -> str | None:
    """The reason of a `StoreUnavailable` that a task raised, from the text of Spark's error; None if it raised none."""
    found = _PRINTED.search(text)
    return None if found is None else found[1]
