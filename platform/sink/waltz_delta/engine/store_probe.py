"""Asks a store, before the first batch, whether it creates a file only if it does not exist. A store that ignores the condition accepts the commits
of two drivers as one version, and the rows of one are lost without an error.

In a directory of this machine, `deltalake` creates a commit as a hard link, which replaces nothing. Some file systems have no hard links, such as FAT
and some network file systems. Spark's engine needs none.

The probe of an object store is a small table in a folder of its own. Several commits that were decided from one version are made at the same time,
and exactly one of them may succeed. `deltalake` makes them, so that the store is asked exactly as for a table. It lists the log before it commits, so
a store without conditions is found only if two requests overlap. Of 24 commits in three rounds, some do. One probe for each bucket and process.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final  # Any: `deltalake` has no types
from urllib.parse import urlsplit

from waltz_delta.base.store_errors import sentence
from waltz_delta.engine.arrow_table import PROBE
from waltz_delta.engine.parquet_files import file_name
from waltz_delta.engine.store_options import ENDPOINTS
from waltz_delta.engine.stores import file_system, is_local, with_time_limits
from waltz_delta.errors import StoreUnavailable, UnsafeTable
from waltz_log.loggers import get_logger

__all__ = ["refusal_of_directory", "require_conditional_put"]

log = get_logger(__name__)

ROUNDS: Final = 3
WRITERS: Final = 8
"""Writers that commit at the same time."""

_SCHEMA: Final = json.dumps({"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]})

_proven: set[tuple[str, str]] = set()
_proven_devices: set[int] = set()
"""File systems of this machine, by the number of their device."""
_NOT_ALLOWED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def refusal_of_directory(path: str, location: str) -> str | None:
    """Why the Arrow engine cannot commit in a directory of this machine; None if it can, or if this process may not write there, as an audit. Raises
    `StoreUnavailable` if no file can be made for another reason. One probe for each file system and process, in the directory, or in the one that it
    will be in."""
    try:
        place = next(each for each in (Path(location), *Path(location).parents) if each.is_dir())
        device = place.stat().st_dev
        reason = None if device in _proven_devices else _refusal_of_links(place)
    except OSError as error:
        if error.errno in _NOT_ALLOWED:
            return None
        raise StoreUnavailable(path=path, reason=sentence(error)) from error
    if reason is None:
        _proven_devices.add(device)
    return reason


def _refusal_of_links(place: Path) -> str | None:
    """The files have names of data files. So if the driver dies here, every check of a directory ignores them, and VACUUM removes them."""
    write_id = uuid.uuid4().hex
    file, link = (place / file_name(0, write_id, 0, number) for number in (0, 1))
    try:
        file.touch()
        try:
            os.link(file, link)
        except OSError as error:
            return f"the file system of its directory makes no hard links, by which deltalake creates a commit ({os.strerror(error.errno or 0)})"
        try:
            os.link(file, link)
        except FileExistsError:
            return None
        return "the file system of its directory replaces a file by a hard link, so two drivers could both write one version"
    finally:
        file.unlink(missing_ok=True)
        link.unlink(missing_ok=True)


def require_conditional_put(path: str, location: str, storage: Mapping[str, str]) -> None:
    """Raises `UnsafeTable` if the object store ignores the condition, `StoreUnavailable` if it does not answer. For a directory of this machine, see
    `refusal_of_directory`."""
    url = urlsplit(location)
    bucket = (next((storage[name] for name in sorted(storage) if name.upper() in ENDPOINTS), ""), f"{url.scheme}://{url.netloc}")
    if is_local(location) or bucket in _proven:
        return
    from deltalake.exceptions import DeltaError

    place = f"{location}/{PROBE}/{uuid.uuid4().hex}"
    try:
        replaced = _replaces(place, with_time_limits(location, storage))
    except (DeltaError, OSError) as error:
        raise StoreUnavailable(path=path, reason=sentence(error)) from error
    if replaced:
        reason = "its object store ignores the condition that a commit must be new, so two drivers could both write one version"
        raise UnsafeTable(path=path, reason=reason)
    _proven.add(bucket)


def _replaces(place: str, storage: Mapping[str, str]) -> bool:
    """Whether two commits of one version were accepted."""
    from deltalake import DeltaTable, Schema

    DeltaTable.create(place, Schema.from_json(_SCHEMA), storage_options=dict(storage))
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            for _ in range(ROUNDS):
                tables = [DeltaTable(place, storage_options=dict(storage)) for _ in range(WRITERS)]
                if sum(pool.map(_commits, tables)) > 1:
                    return True
        return False
    finally:
        _remove(place, storage)


def _commits(table: Any) -> bool:
    """Whether the next version of the table was ours."""
    from deltalake import CommitProperties, PostCommitHookProperties
    from deltalake.exceptions import CommitFailedError

    try:
        table.create_write_transaction(
            [],
            mode="append",
            schema=table.schema(),
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )
    except CommitFailedError:
        return False
    return True


def _remove(place: str, storage: Mapping[str, str]) -> None:
    files, root = file_system(place, storage)
    try:
        files.delete_dir(root)
    except FileNotFoundError:  # on Google, where no object stands for the directory itself: its content is gone
        pass
    except OSError as error:  # a role without the right to delete
        log.warning("probe of the store not removed", place=place, error=sentence(error))
