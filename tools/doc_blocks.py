"""The code blocks of the docs: where they are, in which language, and the commands in those for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

NOT_RUN = re.compile(r"<!-- not run: (.{10,}) -->")


class Block(NamedTuple):
    """`line`: of its first line of code, from 1. `not_run`: the reason of the marker `<!-- not run: reason -->` on the line above, or empty."""

    page: str
    line: int
    language: str
    text: str
    not_run: str


def blocks(page: str, markdown: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    lines = markdown.splitlines()
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        fence = re.match(r"(```+)(\S*)\s*$", line)
        if fence is None:
            continue
        if opened is None:
            opened = (number, fence[1], fence[2])
        elif line.strip() == opened[1]:
            start, _, language = opened
            marker = NOT_RUN.match(lines[start - 1]) if start else None
            yield Block(page, start + 2, language, "\n".join(lines[start + 1 : number]) + "\n", marker[1] if marker else "")
            opened = None


def shell_commands(block: Block) -> Iterator[list[str]]:
    """The words of each command in an `sh` block, or of each typed line in a `console` block."""
    typed = block.text
    if block.language == "console":
        typed = "\n".join(line[2:] for line in typed.splitlines() if line.startswith("$ "))
    for line in typed.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(re.sub(r"(^|\s)#\s.*", "", line), posix=True, punctuation_chars="();<>|&")
        lexer.commenters, lexer.whitespace_split = "", True
        words: list[str] = []
        for word in lexer:
            if word in (">", ">>", "<"):
                next(lexer, None)
            elif re.fullmatch(r"[();<>|&]+", word):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words
