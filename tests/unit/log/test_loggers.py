"""Where the library's log lines go: not to the output of the program that uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARY = "from waltz_log.client.base import incidents\n"
LOGS = "incidents.log.warning('connection to the owner lost', partition=3)\n"


def outputs(program: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_lines_go_to_stderr_if_the_application_configures_nothing() -> None:
    stdout, stderr = outputs(LIBRARY + LOGS)
    assert stdout == ""
    assert "connection to the owner lost" in stderr
    assert "partition" in stderr


@pytest.mark.parametrize("configured_first", [True, False])
def test_an_application_that_configures_structlog_decides(configured_first: bool) -> None:
    configure = "import structlog, sys\nstructlog.configure(processors=[structlog.processors.JSONRenderer()])\n"
    stdout, stderr = outputs(configure + LIBRARY + LOGS if configured_first else LIBRARY + configure + LOGS)
    assert (stdout, stderr) == ('{"partition": 3, "event": "connection to the owner lost"}\n', "")


def test_an_application_can_route_lines_to_the_standard_library() -> None:
    configure = (
        "import logging, structlog, sys\n"
        "logging.basicConfig(format='%(name)s|%(levelname)s|%(message)s', stream=sys.stdout)\n"
        "structlog.configure(processors=[structlog.stdlib.add_logger_name, structlog.stdlib.render_to_log_kwargs],\n"
        "    logger_factory=structlog.stdlib.LoggerFactory(), wrapper_class=structlog.stdlib.BoundLogger)\n"
    )
    stdout, stderr = outputs(LIBRARY + configure + LOGS)
    assert (stdout, stderr) == ("waltz_log.client.base.incidents|WARNING|connection to the owner lost\n", "")


def test_a_fact_may_have_any_name() -> None:
    _, stderr = outputs(LIBRARY + "incidents.log.warning('call failed', method='Describe', address='a:1')\n")
    assert "Describe" in stderr
