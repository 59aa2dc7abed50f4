"""The commands of `waltz storage` that make something: a converted directory, a backup, a directory from a backup."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

from waltz_log.cli.exit_codes import OK
from waltz_log.core.control_format import CONTROL_FILE
from waltz_log.errors import InvalidSetting
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage.migrate import JAVA_CONTROL_FILE, migrate

__all__ = ["migrate_directory"]


def migrate_directory(directory: Path, output: str) -> int:
    if not (directory / CONTROL_FILE).is_file():
        raise InvalidSetting(name="directory", reason=f"is no storage directory: it holds no {CONTROL_FILE}: {directory}", nearest=None)
    _refuse_the_originals(directory / CONTROL_FILE)
    done = migrate(FileSystemDisk(directory))
    if output == "json":
        told = {"migrated": done.done, "kept": JAVA_CONTROL_FILE, "marks": [asdict(mark) for mark in done.marks]}
        print(json.dumps(told | {"last_transaction_ids": done.last_transaction_ids}, indent=2))
        return OK
    if not done.done:
        print(f"nothing to do: {directory} was migrated before, {JAVA_CONTROL_FILE} is the file it had")
        return OK
    for partition, mark in enumerate(done.marks):
        last = done.last_transaction_ids.get(partition, -1)
        print(f"partition {partition}: session={mark.session} low_water_mark={mark.low_water_mark} last_transaction_id={last}")
    print(f"migrated {directory}, the original's control file is kept as {JAVA_CONTROL_FILE}")
    return OK


def _refuse_the_originals(control_file: Path) -> None:
    """The original locks its control file for as long as it runs, in the way of `fcntl`, which knows nothing of ours."""
    descriptor = os.open(control_file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InvalidSetting(name="directory", reason=f"is taken by a storage of Java Waltz: {error.strerror}", nearest=None) from None
    finally:
        os.close(descriptor)
