"""Modules of the product state why they use `Any`: `tools/any_reasons.py` finds those that do not."""

from __future__ import annotations

import json

import pytest

from tools.any_reasons import RECORDED, findings, problems, without_reason


def test_every_use_of_any_in_the_product_has_a_reason() -> None:
    assert problems(json.loads(RECORDED.read_text())["any_without_reason"], findings()) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("from typing import Any\nheld: Any = 1\n", [2]),
        ("from typing import Any  # JSON values\nheld: Any = 1\n", []),
        ("from typing import Any  #\nheld: Any = 1\n", [2]),
        ("from typing import (\n    Any,  # JSON values\n    Final,\n)\nheld: Any = 1\n", []),
        ("from typing import (\n    Any,\n    Final,  # JSON values\n)\nheld: Any = 1\n", [5]),
        ("from typing import Any  # JSON values\n", []),
        ("from typing import Any\ndef run(work: Coroutine[Any, Any, None]) -> None: ...\n", []),
        ("from typing import Any\ndef run(work: Coroutine[Any, Any, Any]) -> None: ...\n", [2]),
        ("import json  # JSON values\nfrom typing import Any\nheld: list[Any] = []\n", [3]),
    ],
)
def test_a_reason_is_a_comment_where_the_name_is_imported(source: str, lines: list[int]) -> None:
    assert without_reason(source) == lines


def test_more_and_fewer_uses_than_recorded_are_problems() -> None:
    found = {"waltz_log": ["platform/log/waltz_log/settings.py:3"], "waltz_delta": []}
    assert problems({"waltz_log": 1, "waltz_delta": 0}, found) == []
    [more] = problems({"waltz_log": 0, "waltz_delta": 0}, found)
    assert more.splitlines()[1].strip() == "platform/log/waltz_log/settings.py:3"
    [fewer] = problems({"waltz_log": 1, "waltz_delta": 2}, found)
    assert "lower the count" in fewer
