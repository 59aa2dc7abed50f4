"""docs/reference/spark.md lists every option as the code has it, and docs/guides/troubleshooting.md every error that the source raises."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_waltz import errors
from pyspark_waltz.options import OPTIONS
from pyspark_waltz.schema import SCHEMA_WITH_METADATA, TOPIC_FIELDS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE, ERRORS = ((DOCS / page).read_text() for page in ("reference/spark.md", "guides/troubleshooting.md"))
USES = {"stream": "stream", "batch": "batch", "metadata": "`mode=metadata`"}


def options_table() -> str:
    lines = ["| option | default | for | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        uses = "all" if len(option.uses) == len(USES) else ", ".join(reported for use, reported in USES.items() if use in option.uses)
        lines.append(f"| `{option.name}` | {option.default} | {uses} | {option.meaning} |")
    return "\n".join(lines)


def test_the_table_of_options_is_that_of_the_code() -> None:
    found = re.search(r"<!-- options -->\n(.*)\n<!-- end of options -->", PAGE, re.DOTALL)
    assert found is not None
    assert found[1] == options_table()


def test_every_column_and_every_error_of_the_source_is_reported() -> None:
    for field in (*SCHEMA_WITH_METADATA, *TOPIC_FIELDS):
        assert re.search(rf"\| .*`{field.name}`.* \| `{field.dataType.simpleString().upper()}` \|", PAGE), field.name
    for name in errors.__all__:
        assert getattr(errors, name).text in ERRORS
