from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from demo.processes import ChildFailed, Children


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


PARENT = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"]


def test_killing_a_child_kills_what_it_started(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("parent", PARENT)
        until(lambda: len(child.family()) == 2)
        family = child.family()
        child.kill()
        assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


def test_leaving_the_context_ends_every_child(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("parent", PARENT)
        until(lambda: len(child.family()) == 2)
        family = child.family()
    assert child.returncode is not None
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


def test_a_child_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("poor", [sys.executable, "-c", "import sys; sys.exit('no fuel')"])
        until(lambda: child.returncode is not None)
        with pytest.raises(ChildFailed, match="no fuel"):
            child.check()


def test_a_child_that_ends_well_is_no_failure(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("good", [sys.executable, "-c", "pass"])
        until(lambda: child.returncode is not None)
        assert child.check() is False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_child_dies_when_the_demo_is_killed(tmp_path: Path) -> None:
    program = f"""
        import sys, time
        from pathlib import Path
        from demo.processes import Children
        child = Children(Path({str(tmp_path)!r})).start("child", [sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as demo:
        assert demo.stdout is not None
        child = psutil.Process(int(demo.stdout.readline()))
        assert child.is_running()
        demo.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
