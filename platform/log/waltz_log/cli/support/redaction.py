"""Hides secrets in what `waltz config show` and `waltz bundle` show: by the names of values, by the structure of the texts in them, and by form.

A value is hidden if its name declares it secret, at any depth. In every other text these parts are hidden: what an address holds before `@` and in
its query, headers that authenticate, options and assignments whose names declare a secret, and tokens and keys of known forms. Too much may be
hidden, and a secret without a name, a structure or a known form is not found: read a bundle before you pass it on. Repetitions in the forms are
bounded, so that the time grows with the size of a log. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final  # Any: values of any setting

from waltz_log.settings import SECRET

__all__ = ["HIDDEN", "redacted", "redacted_text"]

HIDDEN: Final = "(hidden)"

_NAMES: Final = SECRET.pattern

_VALUE: Final = r"(?:\\+\"[^\"\\]*\\+\"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;&\"'}\]\\]+)"

_OPTION: Final = re.compile(rf"(?<![\w.-])(--?[\w.-]+)(\s+|=)({_VALUE})")

_FORMS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # An address: user and password, as in scheme://user:password@host, whatever is in the password; and all values of its query.
    (re.compile(r"(\b[A-Za-z][\w+.-]{0,30}://)([^\s:/@\"']{0,255}):[^\s\"']{0,1024}@"), rf"\1\2:{HIDDEN}@"),
    (re.compile(r"(\b[A-Za-z][\w+.-]{0,30}://)[^\s:/@\"']{16,1024}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?<=[?&])([\w.~%-]{1,128})=[^&\s\"'#]+"), rf"\1={HIDDEN}"),
    # A header or a scheme of authentication, to the end of its line or its quotes.
    (re.compile(r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\"?'?\s{0,8}[:=]\s{0,8}\"?'?)[^\r\n\"']+", re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (re.compile(r"\b(Bearer|Basic|Negotiate)\s{1,8}[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<!\S)(-u|--user|--proxy-user)(\s+|=)(\"[^\"]*\"|'[^']*'|[^\s:]{1,255}:\S+)"), rf"\1\2{HIDDEN}"),
    # An assignment.
    (re.compile(rf"((?:{_NAMES})[\w.-]{{0,32}}\\{{0,4}}[\"']?\s{{0,8}}[=:]\s{{0,8}})(?!\(hidden\)){_VALUE}", re.IGNORECASE), rf"\1{HIDDEN}"),
    # Tokens of known forms: JWT, AWS, GitHub, GitLab, Slack, and keys that begin with sk-.
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"), HIDDEN),
    (re.compile(r"\bxox[abeprs]-[\w-]{10,}|\bsk-[\w-]{20,}"), HIDDEN),
)


def redacted(name: str, value: Any) -> Any:
    """Without secrets, at any depth. `name`: of the value; empty: it has none."""
    if SECRET.search(name) and value not in (None, ""):
        return HIDDEN
    if isinstance(value, dict):
        return {key: redacted(str(key), each) for key, each in value.items()}
    if isinstance(value, list):
        # Of a command, the word after an option is its value.
        names = ["", *(each if isinstance(each, str) and each.startswith("-") and "=" not in each else "" for each in value[:-1])]
        return [redacted(before, each) for before, each in zip(names, value, strict=True)] if value else value
    return redacted_text(value) if isinstance(value, str) else value


def redacted_text(text: str) -> str:
    text = _OPTION.sub(_option, text)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def _option(found: re.Match[str]) -> str:
    """An option of a command with its value, in the next word or after =."""
    return f"{found[1]}{found[2]}{HIDDEN}" if SECRET.search(found[1]) else found[0]
