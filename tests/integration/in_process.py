"""A command of `waltz` in this process: starting another one costs ten times as much, and few tests are about the process."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from waltz_log.cli.main import run


def waltz(*arguments: str, variables: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """As `subprocess.run` returns it, with text. `variables` are added to the environment."""
    with patch.dict(os.environ, variables or {}), redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = run(list(arguments))
    return CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())
