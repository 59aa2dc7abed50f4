"""What `make setup` does to Spark so that it starts faster."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tools.spark_start import compile_modules

MODULE = "value = 7\n\n\ndef fail():\n    raise ValueError\n"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    path = tmp_path / "modules.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("package/__init__.py", "")
        made.writestr("package/module.py", MODULE)
        made.writestr("package/data.txt", "text")
    return path


def test_compiled_modules_stand_beside_their_sources_and_are_the_ones_that_run(modules: Path) -> None:
    compile_modules(modules)
    with zipfile.ZipFile(modules) as made:
        assert sorted(made.namelist()) == sorted(
            ["package/__init__.py", "package/__init__.pyc", "package/module.py", "package/module.pyc", "package/data.txt"]
        )
        assert made.read("package/module.py").decode() == MODULE
        kept = {name: made.read(name) for name in made.namelist()}
    with zipfile.ZipFile(modules, "w") as made:  # another source, the same compiled module
        for name, data in kept.items():
            made.writestr(name, data.replace(b"value = 7", b"value = 8") if name.endswith("module.py") else data)
    program = "import package.module as m; print(m.value)"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(modules)}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "7\n"


def test_a_zip_file_with_compiled_modules_is_left_as_it_is(modules: Path) -> None:
    compile_modules(modules)
    before = modules.stat()
    time.sleep(0.01)
    compile_modules(modules)
    assert (modules.stat().st_mtime_ns, modules.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
