"""The file system of a table's directory, for tasks that write files and for the driver: a directory of this machine, or S3.

pyarrow writes the data files, `deltalake` the log. Both get the same storage options, by the names that `deltalake` gives them (`AWS_REGION`,
`AWS_ENDPOINT_URL`, …). What is not among them comes from the environment of each process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final  # Any: pyarrow has no types
from urllib.parse import urlsplit

import pyarrow.fs as fs

__all__ = ["file_size", "file_system", "is_local", "sync", "sync_directory", "with_time_limits"]

CONNECT_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 60.0
"""Limits of one request of a task to S3. A part of a file has 10 MB."""


TIME_LIMITS: Final[Mapping[str, str]] = {"connect_timeout": "10s", "timeout": "30s", "max_retries": "5", "retry_timeout": "60s"}
"""Limits of a request of `deltalake`, and of all of its repetitions."""


def is_local(location: str) -> bool:
    """Whether the location of a table is a directory of this machine."""
    return "://" not in location


def file_system(location: str, storage: Mapping[str, str]) -> tuple[Any, str]:
    """pyarrow's file system, and the path of the table's directory in it."""
    if is_local(location):
        return fs.LocalFileSystem(), location
    url = urlsplit(location)
    return _s3(storage), f"{url.netloc}{url.path}".rstrip("/")


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


def _s3(storage: Mapping[str, str]) -> Any:
    given = {name.upper(): value for name, value in storage.items()}

    def option(name: str) -> str | None:
        return given.get(name) or os.environ.get(name) or None

    endpoint = option("AWS_ENDPOINT_URL") or option("AWS_ENDPOINT_URL_S3")
    where = {} if endpoint is None else {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme}
    keys = {"access_key": option("AWS_ACCESS_KEY_ID"), "secret_key": option("AWS_SECRET_ACCESS_KEY"), "session_token": option("AWS_SESSION_TOKEN")}
    return fs.S3FileSystem(
        region=option("AWS_REGION") or option("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        allow_bucket_creation=False,
        **where,
        **({name: value for name, value in keys.items() if value} if keys["access_key"] else {}),
    )
