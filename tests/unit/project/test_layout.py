"""The project's shape: what must never be there, what generated code must be, and what the wheel carries."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tools.spark_start import ARCHIVE
from waltz_log.cli.checks import DELTA_JARS, DELTA_PINS, PINNED, read_pins
from waltz_log.cli.main import run
from waltz_log.server.base.settings import ServerSettings
from waltz_log.storage.base.settings import StorageSettings

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", ["platform", "platform/log", "platform/spark_source", "platform/sink"])
def test_no_source_root_is_a_package(folder: str) -> None:
    """A package named `platform` would shadow the standard library's, for every process that runs in the project's folder."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_standard_librarys_platform_is_found_from_the_projects_folder() -> None:
    code = "import platform, sys; sys.exit(0 if platform.python_version() else 1)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_no_folder_of_tests_is_a_package() -> None:
    assert [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")] == []


def test_generated_code_is_what_the_proto_gives(tmp_path: Path) -> None:
    here = ROOT / "platform" / "log"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--mypy_out={tmp_path}"]
    command += [f"--plugin=protoc-gen-mypy={Path(sys.executable).with_name('protoc-gen-mypy')}", "waltz_log/transport/waltz.proto"]
    subprocess.run(command, cwd=here, timeout=120, check=True)
    for name in ("waltz_pb2.py", "waltz_pb2.pyi"):
        made = (tmp_path / "waltz_log" / "transport" / name).read_text()
        assert made == (here / "waltz_log" / "transport" / name).read_text(), f"{name} differs: generate it again"


def test_the_wheel_carries_the_three_packages_and_nothing_else() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(Path(package).name for package in packages) == ["pyspark_waltz", "waltz_delta", "waltz_log"]
    for package in packages:
        assert (ROOT / package / "__init__.py").exists()
        assert (ROOT / package / "py.typed").exists()


@pytest.mark.slow
def test_a_wheel_built_from_the_project_holds_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, timeout=280, check=True)
    (wheel,) = tmp_path.glob("waltz_platform-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"pyspark_waltz", "waltz_delta", "waltz_log"}
    assert "waltz_log/transport/waltz.proto" in names
    assert "waltz_log/py.typed" in names


def test_every_pinned_version_is_one_that_the_project_allows() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    assert len(pins) == len(lines)
    wanted = [*PROJECT["project"]["dependencies"], *(each for extra in PROJECT["project"]["optional-dependencies"].values() for each in extra)]
    for requirement in (Requirement(each) for each in wanted):
        if requirement.name != "waltz-platform":
            pinned = pins.get(canonicalize_name(requirement.name))
            assert pinned is not None, f"{requirement.name} is not pinned"
            assert requirement.specifier.contains(pinned), f"{requirement} against {pinned}"
    assert {name: pins[canonicalize_name(name)] for name in PINNED} == PINNED, "what doctor checks is what is pinned"


def test_pages_and_manifests_name_the_version_of_the_tree() -> None:
    version = PROJECT["project"]["version"]
    named = re.compile(r"(?:waltz_platform-|\bwaltz(?:-jobs|-spark)?:|newTag: )(\d[\w.]*?)(?:-py3|[`\s,}]|$)", re.MULTILINE)
    texts = {path: path.read_text() for folder in ("docs", "conf") for path in (ROOT / folder).rglob("*") if path.suffix in {".md", ".yaml"}}
    found = {path.name: set(named.findall(text)) for path, text in texts.items() if path.parent.name != "decisions" and path.name != "upgrades.md"}
    stated = {name: versions for name, versions in found.items() if versions}
    assert stated.keys() >= {"install.md", "deploy.md", "spark_cluster.md", "kustomization.yaml"}
    assert {name: versions for name, versions in stated.items() if versions != {version}} == {}


def test_the_changelog_describes_the_version_in_added_changed_and_fixed() -> None:
    lines = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("#")]
    versions = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    from packaging.version import Version

    mine, released = Version(PROJECT["project"]["version"]), Version(versions[1])
    assert versions[0] == "Unreleased"
    assert mine > released if mine.is_devrelease else mine == released, "nodes of two builds need two versions"
    assert {line for line in lines if line.startswith("### ")} == {"### Added", "### Changed", "### Fixed"}


def test_the_command_prints_the_version_that_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"waltz {version('waltz-platform')}\n"


def test_spark_finds_delta_where_setup_puts_it() -> None:
    reported = (ROOT / "conf" / "spark-defaults.conf").read_text()
    settings = dict(line.split(maxsplit=1) for line in reported.splitlines() if line and not line.startswith("#"))
    assert settings["spark.driver.extraClassPath"] == f"{DELTA_JARS}/*"
    assert "spark.jars" not in settings, "a driver would load Delta twice"
    assert f"-XX:SharedArchiveFile={ARCHIVE}" in settings["spark.driver.extraJavaOptions"].split()
    pinned = [coordinates for coordinates, _ in read_pins(ROOT / DELTA_PINS).values()]
    assert f"io.delta:delta-spark_4.2_2.13:{PINNED['delta-spark']}" in pinned
    assert PINNED["pyspark"].startswith("4.2")


@pytest.mark.parametrize(("name", "settings"), [("storage", StorageSettings), ("server", ServerSettings)])
def test_the_shipped_settings_are_accepted(name: str, settings: type[StorageSettings] | type[ServerSettings]) -> None:
    path = ROOT / "conf" / f"{name}.yaml"
    assert settings.load(path, prefix="WALTZ_TEST", environment={}).coordinator == yaml.safe_load(path.read_text())["coordinator"]


def test_every_target_of_the_makefile_sets_up_first() -> None:
    found = re.findall(r"^([a-z-]+):([^=\n#]*)##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    rules = {name: needs.split() for name, needs in found}

    def sets_up(name: str) -> bool:
        return name == "setup" or any(sets_up(needed) for needed in rules.get(name, []))

    assert {name for name in rules if not sets_up(name)} == {"help", "clean", "distclean", "hashes"}
