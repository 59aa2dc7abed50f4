"""Every function of the pure core and the journal has a caller outside the tests, and every refusal of the protocol has a sender."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from waltz_log.transport import waltz_pb2 as pb

ROOT = Path(__file__).parents[3]
LOG = ROOT / "platform" / "log" / "waltz_log"
USERS = ("platform", "jobs", "demo", "examples", "benchmarks", "tools", "verification")
GENERATED = ("waltz_pb2.py", "waltz_pb2.pyi")


def _defined(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node.name


def _uses() -> Counter[str]:
    """How often each name occurs in code, other than where it is defined or exported."""
    found: Counter[str] = Counter()
    for top in USERS:
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name not in GENERATED:
                text = re.sub(r"^__all__ = \[.*?\]", "", path.read_text(), flags=re.M | re.S)
                found.update(re.findall(r"(?<!def )\b[a-zA-Z_]\w*\b(?=\W)", re.sub(r'"""(?s:.*?)"""|#.*', "", text)))
    return found


def test_every_function_of_the_core_and_the_journal_has_a_caller() -> None:
    uses = _uses()
    unused = {name for folder in ("core", "journal") for name in _defined(LOG / folder) if not uses[name]}
    assert unused == set()


def test_every_refusal_of_the_protocol_has_a_sender() -> None:
    senders = "".join(path.read_text() for path in sorted((LOG / "server").rglob("*.py")))
    assert [name for name, number in pb.RefusalReason.items() if number and f"pb.{name}" not in senders] == []
    assert len(pb.RefusalReason.items()) > 5


def test_every_field_of_a_mount_is_read_by_the_server_and_every_field_of_its_answer_by_the_client() -> None:
    for message, folder in ((pb.MountRequest, "server"), (pb.MountResponse, "client")):
        readers = "".join(path.read_text() for path in sorted((LOG / folder).rglob("*.py")))
        fields = [field.name for field in message.DESCRIPTOR.fields]
        assert [name for name in fields if not re.search(rf"\b(request|mounted|answer)\.{name}\b", readers)] == []
