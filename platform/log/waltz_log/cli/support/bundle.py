"""`waltz bundle`: one archive for support: the state of the cluster, topics, subscribers, versions, settings and the end of logs.

Holds no payload, no key and no lock. Secrets in settings and logs are hidden. `problems.json` names what is missing, because nodes do not
answer or a file is not there; the archive is written all the same.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import io
import json
import os
import platform
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final  # values of documents in JSON and YAML

import yaml

from waltz_log.cli import checks
from waltz_log.cli.connecting import connected
from waltz_log.cli.printing import print_result
from waltz_log.cli.support.config import plain
from waltz_log.cli.support.redaction import redacted, redacted_text
from waltz_log.coordination.entries import UNREADABLE, read_entry
from waltz_log.coordination.subscribers import read_subscribers
from waltz_log.coordination.survey import survey
from waltz_log.coordination.topics import read_catalogue
from waltz_log.core.metadata import ASSIGNMENT, REPLICA_MOVES, REPLICAS
from waltz_log.core.ports import Coordinator, Network
from waltz_log.errors import InvalidSetting, WaltzError
from waltz_log.exit_codes import OK
from waltz_log.processes.clock import WallClock
from waltz_log.untrusted_files import LOG, SETTINGS, load_yaml, read_tail, read_text

__all__ = ["collect", "run", "write"]

LOG_BYTES_MAX: Final = 2_000_000
"""The end of each log."""


def run(address: str, to: Path, *, configs: Sequence[Path], logs: Sequence[Path], timeout_s: float, output: str = "table") -> int:
    """Raises `InvalidSetting` if the archive exists already, `OSError` if it cannot be written."""
    if to.exists():
        raise InvalidSetting(name="--to", reason=f"exists already: {to}", nearest=None)
    problems: dict[str, str] = {}
    files: dict[str, str] = {}
    try:
        files |= asyncio.run(_of_cluster(address, problems, timeout_s))
    except WaltzError as error:
        problems["cluster"] = str(error)
    files |= _machine() | _settings(configs, problems) | _logs(logs, problems)
    files["problems.json"] = json.dumps(problems, indent=2)
    write(to, files, WallClock().now_ms())
    size = to.stat().st_size
    lines = [f"{to} has {len(files)} files, {size:,} bytes; read it before you pass it on"]
    lines += [f"without {what}: {reason}" for what, reason in problems.items()]
    print_result({"archive": str(to), "files": sorted(files), "bytes": size, "problems": problems}, lines, output)
    return OK


async def _of_cluster(address: str, problems: dict[str, str], timeout_s: float) -> dict[str, str]:
    async with connected(address, timeout_s) as (coordinator, network):
        return await collect(coordinator, network, address, problems)


async def collect(coordinator: Coordinator, network: Network, address: str, problems: dict[str, str]) -> dict[str, str]:
    """What the cluster says. Each part by itself: one that fails is a problem, not the end."""
    files: dict[str, str] = {}

    async def status() -> Any:
        found = await survey(coordinator, network, address)
        return asdict(found) | {"ready": found.ready, "complete": found.complete, "missing": found.missing}

    async def topics() -> Any:
        return plain(asdict(await read_catalogue(coordinator)))

    async def subscribers() -> Any:
        return [plain(asdict(each)) for each in await read_subscribers(coordinator)]

    async def nodes() -> Any:
        return {path: await read_entry(coordinator, path, json.loads) for path in (ASSIGNMENT, REPLICAS, REPLICA_MOVES)}

    for name, read in (("status.json", status), ("topics.json", topics), ("subscribers.json", subscribers), ("coordinator.json", nodes)):
        try:
            files[name] = json.dumps(redacted("", plain(await read())), indent=2)
        except UNREADABLE as error:
            problems[name] = str(error)
    return files


def _machine() -> dict[str, str]:
    packages = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
    found = {"python": sys.version, "platform": platform.platform(), "processors": os.cpu_count(), "packages": dict(sorted(packages.items()))}
    doctor = [asdict(check) for check in checks.machine_checks(Path.cwd())]
    return {"versions.json": json.dumps(found, indent=2), "doctor.json": json.dumps(doctor, indent=2)}


def _settings(configs: Sequence[Path], problems: dict[str, str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for number, path in enumerate(configs):
        try:
            files[f"settings/{number}-{path.name}"] = yaml.safe_dump(redacted("", plain(load_yaml(read_text(path, SETTINGS)))), sort_keys=False)
        except (OSError, ValueError) as error:
            problems[str(path)] = redacted_text(" ".join(str(error).split()))
    names = sorted(name for name in os.environ if name.startswith("WALTZ_"))
    files["settings/environment.json"] = json.dumps({name: redacted(name, os.environ[name]) for name in names}, indent=2)
    return files


def _logs(logs: Sequence[Path], problems: dict[str, str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for number, path in enumerate(logs):
        try:
            files[f"logs/{number}-{path.name}"] = redacted_text(read_tail(path, LOG, LOG_BYTES_MAX).decode(errors="backslashreplace"))
        except OSError as error:
            problems[str(path)] = str(error.strerror)
    return files


def write(to: Path, files: dict[str, str], now_ms: int) -> None:
    """A gzipped tar that only this user reads, complete or not at all."""
    part = to.with_name(f"{to.name}.part")
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(f"waltz-bundle/{name}")
                data = text.encode()
                entry.size, entry.mtime, entry.mode = len(data), now_ms // 1000, 0o600
                archive.addfile(entry, io.BytesIO(data))
        part.rename(to)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
