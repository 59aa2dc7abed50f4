"""SHA-256 of each file that the package index has for a pinned version, in `package-hashes.txt`: set-up installs nothing else.

`make hashes` writes the file after a change of `constraints.txt`: it asks the index that pip is configured with, and downloads no package. Set-up
compares what pip has installed with it (`unknown`), and removes the environment again, before anything was imported, if a file is another one.
Uses only the standard library, because it checks everything else.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any  # Any: JSON values

__all__ = ["HASHES", "INSTALLED", "installed_hashes", "pins", "read_hashes", "record_installed", "unknown"]

HASHES = Path("package-hashes.txt")
INSTALLED = "installed-hashes.json"
"""In the environment: the SHA-256 of the file that each package was installed from."""

ACCEPT = "application/vnd.pypi.simple.v1+json"
TIMEOUT_S = 60.0
AT_ONCE = 8
HEADING = "# Of each pinned package, the SHA-256 of every file that the index has for the version. Written by make hashes.\n"


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(constraints: str) -> Iterator[tuple[str, str]]:
    """Name and version of each line."""
    for line in constraints.splitlines():
        pin = line.partition("#")[0].partition(";")[0].strip()
        if pin:
            name, _, version = pin.partition("==")
            yield normalized(name), version.strip()


def read_hashes(text: str) -> dict[tuple[str, str], frozenset[str]]:
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, *hashes = line.split()
            name, _, version = pin.partition("==")
            found[name, version] = frozenset(hashes)
    return found


def installed_hashes(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Version and SHA-256 by name of what pip's report says that it installed, without the project itself."""
    found = {}
    for each in report["install"]:
        if "dir_info" not in each["download_info"]:
            about = each["metadata"]
            found[normalized(about["name"])] = (about["version"], each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", ""))
    return found


def unknown(installed: Mapping[str, tuple[str, str]], known: Mapping[tuple[str, str], Iterable[str]]) -> list[str]:
    """The packages whose file is none of those that are known, in order of their names."""
    return [f"{name}=={version}" for name, (version, digest) in sorted(installed.items()) if digest not in known.get((name, version), ())]


def record_installed(environment: Path, installed: Mapping[str, tuple[str, str]]) -> None:
    """Adds to what was recorded before: pip reports only what it changed."""
    path = environment / INSTALLED
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **installed}, indent=1, sort_keys=True))


def _asked(index: str, name: str, version: str) -> str:
    request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": ACCEPT})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        files = json.load(answer)["files"]
    stems = {re.sub(r"[-_.]+", "_", name)}
    hashes = sorted({each["hashes"]["sha256"] for each in files if _is_of(each["filename"], stems, version)})
    if not hashes:
        raise SystemExit(f"hashes: the index has no file of {name}=={version}")
    return " ".join([f"{name}=={version}", *hashes]) + "\n"


def _is_of(filename: str, stems: set[str], version: str) -> bool:
    """`name-version-….whl` or `name-version.tar.gz`. A file's name writes the project's in several ways."""
    stem = re.sub(r"\.(tar\.gz|zip|tar\.bz2|whl)$", "", filename)
    for match in re.finditer("-", stem):
        name, rest = stem[: match.start()], stem[match.end() :]
        if re.sub(r"[-_.]+", "_", name).lower() in stems and (rest == version or rest.startswith(f"{version}-")):
            return True
    return False


def main() -> int:
    from pip._internal.models.index import PyPI  # the address that pip asks unless it is configured with another one

    from tools.clean_pip import configured_index

    index = configured_index() or PyPI.simple_url
    wanted = sorted(set(pins(Path("constraints.txt").read_text())))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        lines = list(pool.map(lambda pin: _asked(index, *pin), wanted))
    HASHES.write_text(HEADING + "".join(lines))
    print(f"hashes: {len(lines)} packages, {sum(len(line.split()) - 1 for line in lines)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
