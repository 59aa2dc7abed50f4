"""The folders of compacted views under a node's directory, `<namespace>/<topic>/<partition>/`: finding them, and removing one.

A folder without `metadata` is the remains of a view whose creation a crash interrupted. Folders of log partitions have numbers as names, which no
namespace has. Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from waltz_log.compaction.manifest import METADATA, Manifest
from waltz_log.compaction.view import read_metadata
from waltz_log.core.ports import Disk
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, WaltzError
from waltz_log.loggers import get_logger

__all__ = ["ViewFolder", "folders_of_views", "has_view", "read_manifest", "remove_empty_folders", "remove_view_folder", "view_folders"]

log = get_logger(__name__)


class ViewFolder(NamedTuple):
    topic: TopicName
    partition: int
    log_partition: int
    properties: Mapping[str, str]


def view_folders(disk: Disk) -> Iterator[tuple[TopicName, int]]:
    """All folders that may belong to views, in order."""
    for namespace in disk.list(""):
        if namespace.isdigit() or not _is_name(namespace):
            continue
        for topic in _list(disk, namespace):
            if not _is_name(topic):
                continue
            name = TopicName(namespace, topic)
            for partition in _list(disk, f"{namespace}/{topic}"):
                if partition.isascii() and partition.isdigit() and has_view(disk, name, int(partition)):
                    yield name, int(partition)


def _is_name(name: str) -> bool:
    try:
        return str(TopicName.parse(f"{name}/x")) == f"{name}/x"
    except InvalidRequest:
        return False


def _list(disk: Disk, path: str) -> list[str]:
    try:
        return disk.list(path)
    except NotADirectoryError:
        return []


def has_view(disk: Disk, topic: TopicName, partition: int) -> bool:
    return disk.exists(f"{topic.namespace}/{topic.topic}/{partition}/{METADATA}")


def read_manifest(disk: Disk, topic: TopicName, partition: int) -> Manifest:
    """Raises `CorruptData`, `OSError`."""
    return read_metadata(disk, f"{topic.namespace}/{topic.topic}/{partition}/{METADATA}")


def folders_of_views(disk: Disk) -> list[ViewFolder]:
    """The folders whose `metadata` can be read and names a log partition. Other folders are found when the owner of the partition asks for its
    view."""
    found = []
    for topic, partition in view_folders(disk):
        try:
            manifest = read_manifest(disk, topic, partition)
        except (OSError, WaltzError, ValueError, KeyError) as error:
            log.error("metadata of a compacted view cannot be read", topic=str(topic), partition=partition, error=str(error))
            continue
        if manifest.log_partition >= 0 and manifest.type == "compaction":
            found.append(ViewFolder(topic, partition, manifest.log_partition, dict(manifest.properties)))
    return found


def remove_view_folder(disk: Disk, topic: TopicName, partition: int) -> None:
    """Removes `metadata` last: until then the folder names its view and that it is incomplete, so that removing it is tried again. Then removes empty
    parent folders. Raises `OSError`."""
    folder = f"{topic.namespace}/{topic.topic}/{partition}"
    names = disk.list(folder)
    for name in names:
        if name != METADATA:
            disk.remove(f"{folder}/{name}")
    if METADATA in names:
        disk.sync_directory(folder)
        disk.remove(f"{folder}/{METADATA}")
        disk.sync_directory(folder)
    _remove_empty(disk, f"{topic.namespace}/{topic.topic}/{partition}")


def remove_empty_folders(disk: Disk) -> None:
    """Removes what a crash left of views that were being removed."""
    for namespace in disk.list(""):
        if namespace.isdigit() or not _is_name(namespace):
            continue
        topics = [topic for topic in _list(disk, namespace) if _is_name(topic)]
        folders = [f"{namespace}/{topic}/{partition}" for topic in topics for partition in _list(disk, f"{namespace}/{topic}")]
        for folder in (*folders, *(f"{namespace}/{topic}" for topic in topics), namespace):
            if _is_empty(disk, folder):
                _remove_empty(disk, folder)


def _is_empty(disk: Disk, folder: str) -> bool:
    try:
        return disk.exists(folder) and not disk.list(folder)
    except NotADirectoryError:
        return False


def _remove_empty(disk: Disk, folder: str) -> None:
    """Removes the folder and its parents as far as they are empty."""
    while folder:
        with suppress(OSError):  # another partition of the topic exists, or is being created or removed
            if _is_empty(disk, folder):
                disk.remove(folder)
        folder = folder.rpartition("/")[0]
    disk.sync_directory("")
