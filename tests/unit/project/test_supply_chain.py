"""What is distributed is known and can be built again: the bill of materials, the wheel, the audit of the pinned packages."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import audit
from tools.audit import read_findings
from tools.dist import PROJECT, build_wheel, needed
from tools.hatch_build import unexpected
from tools.package_hashes import HASHES, read_hashes
from tools.sbom import bill_of_materials

ROOT = Path(__file__).resolve().parents[3]
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of py-serializable, when it is imported
def test_the_bill_of_materials_has_each_packed_package_with_its_version_and_license() -> None:
    packages = needed(PROJECT, frozenset({"server"}))
    text = bill_of_materials(PROJECT, packages, made_s=1_600_000_000)
    assert text == bill_of_materials(PROJECT, reversed([*packages]), made_s=1_600_000_000)
    bom = json.loads(text)
    assert (bom["bomFormat"], bom["metadata"]["component"]["name"]) == ("CycloneDX", PROJECT)
    assert bom["metadata"]["timestamp"] == "2020-09-13T12:26:40+00:00"
    found = {each["name"]: each for each in bom["components"]}
    assert set(found) == set(packages) - {PROJECT}
    grpcio = found["grpcio"]
    assert grpcio["purl"] == f"pkg:pypi/grpcio@{importlib.metadata.version('grpcio')}"
    assert grpcio["licenses"]
    known = read_hashes((ROOT / HASHES).read_text())
    for name, each in found.items():
        (digest,) = each["hashes"]
        assert (digest["alg"], digest["content"] in known[name, each["version"]]) == ("SHA-256", True), name
    assert str(ROOT) not in text


def test_an_audit_counts_what_it_could_not_check() -> None:
    report = {
        "dependencies": [
            {"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}, {"id": "X-2", "fix_versions": []}]},
            {"name": "b", "version": "1", "vulns": []},
            {"name": "c", "skip_reason": "Dependency not found"},
        ]
    }
    assert read_findings(report) == (["a 1: X-1, fixed in 2", "a 1: X-2, fixed in no version"], 2, 1)


@pytest.mark.parametrize("options", [(), ("--offline-ok",)])
@pytest.mark.parametrize(
    "output", ["", "{}", json.dumps({"dependencies": []}), json.dumps({"dependencies": [{"name": "a", "skip_reason": "Dependency not found"}]})]
)
def test_an_audit_that_checked_nothing_is_not_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, output, "no database"))
    monkeypatch.setattr(sys, "argv", ["audit", *options])
    assert audit.main() == (0 if options else audit.UNCHECKED)
    assert audit.UNCHECKED == 3
    assert "nothing was checked" in capsys.readouterr().err


@pytest.mark.parametrize(("vulnerabilities", "code"), [([], 0), ([{"id": "X-1", "fix_versions": ["2"]}], 1)])
def test_an_audit_ends_with_what_it_found(monkeypatch: pytest.MonkeyPatch, vulnerabilities: list[dict[str, object]], code: int) -> None:
    report = json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": vulnerabilities}, {"name": "c", "skip_reason": "unknown"}]})
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, report, ""))
    monkeypatch.setattr(sys, "argv", ["audit"])
    assert audit.main() == code


def test_each_pinned_version_is_exact() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+", line)] == []


STRAY = ("node.pem", "node.key", ".env", "production.env", "client.p12", "core", "notes.md", "link.py", "folder")


@pytest.mark.parametrize("name", STRAY)
def test_a_stray_file_or_a_link_is_not_packed(tmp_path: Path, name: str) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "module.py").touch()
    (package / "py.typed").touch()
    assert unexpected(package) == []
    stray = package / "inner" / name
    if name in ("link.py", "folder"):
        target = tmp_path / "outside"
        target.mkdir() if name == "folder" else target.touch()
        stray.symlink_to(target)
    else:
        stray.touch()
    assert unexpected(package) == [stray]


def test_the_packages_hold_nothing_that_a_wheel_must_not_contain() -> None:
    for package in PACKAGES:
        assert unexpected(ROOT / package) == []


@pytest.mark.parametrize("kind", ["key", "link"])
def test_a_wheel_with_a_stray_file_is_not_built(tmp_path: Path, kind: str) -> None:
    """With the project's own settings of the build."""
    project = tmp_path / "project"
    for package in PACKAGES:
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/hatch_build.py"):
        (project / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, project / name)
    stray = project / PACKAGES[0] / ("node.key" if kind == "key" else "secret.py")
    if kind == "key":
        stray.write_text("private")
    else:
        (tmp_path / "outside.py").write_text("SECRET = 1")
        stray.symlink_to(tmp_path / "outside.py")
    with pytest.raises(subprocess.CalledProcessError):
        build_wheel(project, tmp_path)
    stray.unlink()
    assert build_wheel(project, tmp_path).exists()


@pytest.mark.long
def test_two_builds_of_the_wheel_are_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(build_wheel(ROOT, tmp_path / name).read_bytes())
    assert made[0] == made[1]
