"""`core/formats/record_layout.py` alone knows where the fields of a record are and how large they are."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

from waltz_log.core.formats.columns import HEADER_DTYPE
from waltz_log.core.formats.record_layout import (
    CHECKSUM_WORD,
    DATA_LENGTH,
    FIELDS,
    HEADER,
    HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    SEALED_HEADER_BYTES,
    SENDER,
    SEQUENCE_WORD,
    length_of,
    offset_of,
)

ROOT = Path(__file__).parents[3]
LAYOUT = ROOT / "platform/log/waltz_log/core/formats/record_layout.py"
SIZES = {"28", "36", "40"}
"""Where the data length is, and the bytes of a header and of a record without data."""

FOLDERS = [
    *("log/waltz_log/" + name for name in ("core/formats", "storage", "server", "client/append", "client/feed", "console/reading", "testing")),
    "spark_source",
]
"""Where records are read or written."""

OTHER_MEANINGS = {
    "platform/log/waltz_log/core/formats/control_format.py": "MARK_BYTES",
    "platform/log/waltz_log/core/formats/java_control_format.py": "JAVA_STRUCT_BYTES",
    "platform/spark_source/pyspark_waltz/decode/problems.py": "_SHOWN_MAX",
}
"""What the line must contain in which one of the numbers is something else."""

STRUCT_OF_A_HEADER = re.compile(r"qi{6}I|q4?i{5}i|28x")


def _bare_sizes(path: Path, root: Path = ROOT) -> list[str]:
    other = OTHER_MEANINGS.get(str(path.relative_to(root)))
    found, before = [], ""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            shifts = before == "<<"  # a power of two
            if token.type == tokenize.NUMBER and token.string in SIZES and not shifts and (other is None or other not in token.line):
                found.append(f"{path.relative_to(root)}:{token.start[0]}: {token.line.strip()}")
            before = token.string
    return found


def _sources() -> list[Path]:
    paths = [path for folder in FOLDERS for path in (ROOT / "platform" / folder).rglob("*.py")]
    return sorted(path for path in paths if path != LAYOUT and not path.name.endswith("_pb2.py"))


def test_no_other_module_writes_the_numbers_of_the_layout() -> None:
    assert [line for path in _sources() for line in _bare_sizes(path)] == []


def test_no_other_module_writes_the_struct_of_a_header() -> None:
    strings = re.compile(r'"(>[^"]*)"')
    found = [str(path) for path in _sources() for text in strings.findall(path.read_text()) if STRUCT_OF_A_HEADER.search(text)]
    assert found == []


def test_a_bare_number_and_a_second_struct_are_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("start = 1 << 40\nlength = data[28:32]\n")
    assert _bare_sizes(planted, tmp_path) == ["planted.py:2: length = data[28:32]"]
    assert STRUCT_OF_A_HEADER.search(">qiiiiiiI")


def test_the_layout_is_the_documented_one() -> None:
    assert (HEADER_BYTES, RECORD_OVERHEAD_BYTES, SEALED_HEADER_BYTES) == (36, 40, 40)
    fields = HEADER_DTYPE.fields
    assert fields is not None
    assert {name: offset_of(name) for name, _ in FIELDS} == {name: field[1] for name, field in fields.items()}
    assert (offset_of("data_length"), 4 * SEQUENCE_WORD, 4 * CHECKSUM_WORD) == (28, offset_of("sequence"), offset_of("data_checksum"))
    header = HEADER.pack(7, 1, 2, 3, 4, 5, 6, 8)
    assert SENDER.unpack_from(header) == (1, 2, 4)
    assert DATA_LENGTH.unpack_from(header) == (6,)
    assert length_of(header) == 46
