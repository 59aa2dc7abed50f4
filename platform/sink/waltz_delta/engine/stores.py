"""The file system of a table's directory, for tasks that write files and for the driver: a directory of this machine, or an object store.

pyarrow writes the data files, `deltalake` the log. Both get the same storage options, by the names that `deltalake` gives them (`AWS_REGION`,
`AWS_ENDPOINT_URL`, …). What is not among them comes from the environment of each process. `store_options` translates them for pyarrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final  # Any: pyarrow has no types
from urllib.parse import urlsplit

import pyarrow.fs as fs

from waltz_delta.engine.store_options import AZURE, GOOGLE, TIME_LIMITS, azure_options, google_options, s3_options

__all__ = ["file_size", "file_system", "is_local", "sync", "sync_directory", "with_time_limits"]

_OF_OPTIONS: Final = re.compile("(AWS|AZURE|GOOGLE)_[A-Z0-9_]+")


def is_local(location: str) -> bool:
    """Whether the location of a table is a directory of this machine."""
    return "://" not in location


def file_system(location: str, storage: Mapping[str, str]) -> tuple[Any, str]:
    """pyarrow's file system, and the path of the table's directory in it."""
    if is_local(location):
        return fs.LocalFileSystem(), location
    url = urlsplit(location)
    given = _with_environment(storage)
    if url.scheme in AZURE:
        container, _, host = url.netloc.partition("@")
        return fs.AzureFileSystem(**azure_options(host.partition(".")[0], given)), f"{container}{url.path}".rstrip("/")
    path = f"{url.netloc}{url.path}".rstrip("/")
    return (fs.GcsFileSystem(**google_options(given)) if url.scheme in GOOGLE else fs.S3FileSystem(**s3_options(given))), path


def with_time_limits(location: str, storage: Mapping[str, str]) -> dict[str, str]:
    """The options, with limits for requests to an object store that they do not set."""
    return dict(storage) if is_local(location) else {**TIME_LIMITS, **storage}


def file_size(files: Any, path: str) -> int:
    """In bytes, asked of the store after the file was closed."""
    return int(files.get_file_info(path).size)


def sync(path: str) -> None:
    """Returns when the content of a file of this machine is on the medium."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str | Path) -> None:
    """Returns when the names in a directory of this machine are on the medium."""
    sync(str(path))


def _with_environment(storage: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in capitals. An empty one counts as not set."""
    there = {name: value for name, value in os.environ.items() if _OF_OPTIONS.fullmatch(name) and value}
    return {**there, **{name.upper(): value for name, value in storage.items() if value}}
