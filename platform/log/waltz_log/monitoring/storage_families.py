"""The metrics of a storage node, each read from its statistics. Pure."""

from __future__ import annotations

from collections.abc import Callable

from waltz_log.core.status.storage_statistics import NodeStatistics, PartitionStatistics, ScrubStatistics
from waltz_log.monitoring.families import Family, Kind, Samples, gauge, histogram, single

__all__ = ["STORAGE"]

SPACES = ("ample", "low", "refusing")


def _partition(name: str, kind: Kind, meaning: str, pick: Callable[[PartitionStatistics], float]) -> Family[NodeStatistics]:
    def read(statistics: NodeStatistics) -> Samples:
        return [((str(each.partition),), pick(each)) for each in statistics.partitions]

    return Family(name, kind, ("partition",), meaning, read)


def _node(name: str, meaning: str, pick: Callable[[NodeStatistics], float]) -> Family[NodeStatistics]:
    return gauge(name, (), meaning, single(pick))


def _scrub(name: str, kind: Kind, meaning: str, pick: Callable[[ScrubStatistics], float]) -> Family[NodeStatistics]:
    return Family(name, kind, (), meaning, single(lambda found: None if found.scrub is None else pick(found.scrub)))


def _served(statistics: NodeStatistics) -> Samples:
    """Also of partitions that did not open."""
    failed = {*statistics.stopped, *(each.partition for each in statistics.partitions if each.failed is not None)}
    for number in sorted({*failed, *(each.partition for each in statistics.partitions)}):
        yield (str(number),), int(number not in failed)


STORAGE: tuple[Family[NodeStatistics], ...] = (
    _node("waltz_storage_starts", "How often the node's directory was started.", lambda found: found.start),
    _node("waltz_storage_disk_free_bytes", "Free space on the disk of the node's directory.", lambda found: found.disk_free_bytes),
    _node("waltz_storage_disk_size_bytes", "Size of that disk.", lambda found: found.disk_total_bytes),
    gauge(
        "waltz_storage_disk_state",
        ("state",),
        "1 for the present state of the disk: `ample`, `low` (below `disk_warn_free_bytes`) or `refusing` (appends are refused).",
        lambda found: [((state,), int(found.space == state)) for state in SPACES],
    ),
    _node("waltz_storage_disk_writable", "0 if the directory may not be written to, as on a read-only mount.", lambda found: int(found.writable)),
    _node("waltz_storage_open_files", "Open segment files; bounded by `open_files_max`.", lambda found: found.open_files),
    _node("waltz_storage_writer_bytes", "Received and not written or not synced yet, of all partitions.", lambda found: found.writer_bytes),
    _node("waltz_storage_writer_highest_bytes", "The most since the start.", lambda found: found.writer_bytes_highest),
    _node(
        "waltz_storage_writer_limit_bytes",
        "The bound above which each owner's next block waits (`writer_bytes_max`).",
        lambda found: found.writer_bytes_max,
    ),
    histogram(
        "waltz_storage_write_seconds",
        (),
        "Latency of write rounds: queued blocks are written together, and synced unless all belong to topics with `durability=quorum_memory`.",
        lambda found: {} if found.write_latency is None else {"": found.write_latency},
    ),
    histogram(
        "waltz_storage_sync_seconds",
        (),
        "Latency of the syncs to disk alone, within write rounds and in the background.",
        lambda found: {} if found.sync_latency is None else {"": found.sync_latency},
    ),
    gauge("waltz_storage_partition_served", ("partition",), "1 if the node serves its replica of the partition, 0 if it stopped.", _served),
    _node(
        "waltz_storage_corrupt_partitions", "Partitions that are not served because their stored data is damaged.", lambda found: len(found.corrupt)
    ),
    _node("waltz_storage_repairing_partitions", "Partitions that are served and have corrupt segments.", lambda found: len(found.repairing)),
    _scrub("waltz_storage_scrub_passes_total", "counter", "Passes of the scrub over all data.", lambda scrub: scrub.passes),
    _scrub("waltz_storage_scrub_read_bytes_total", "counter", "Bytes that the scrub read.", lambda scrub: scrub.bytes_read),
    _scrub("waltz_storage_corruption_found_total", "counter", "Damaged places that were found, each counted once.", lambda scrub: scrub.found),
    _scrub(
        "waltz_storage_corruption_repaired_total", "counter", "Damaged places that were repaired from other replicas.", lambda scrub: scrub.repaired
    ),
    _scrub("waltz_storage_damaged_segments", "gauge", "Segments and compacted views that are damaged now.", lambda scrub: scrub.damaged_segments),
    _partition("waltz_storage_session", "gauge", "The store session that writes to the replica.", lambda each: each.session),
    _partition("waltz_storage_fence", "gauge", "The newest session number that the node has seen; older ones are refused.", lambda each: each.fence),
    _partition("waltz_storage_fencings_total", "counter", "Requests and streams of older sessions that were refused.", lambda each: each.fenced),
    _partition("waltz_storage_low_water_mark", "gauge", "Nothing at or below this id can be truncated.", lambda each: each.low_water_mark),
    _partition("waltz_storage_first_transaction_id", "gauge", "The first transaction in the replica.", lambda each: each.first_transaction_id),
    _partition("waltz_storage_last_transaction_id", "gauge", "The last transaction in the replica.", lambda each: each.last_transaction_id),
    _partition("waltz_storage_segments", "gauge", "Segments of the replica.", lambda each: each.segments),
    _partition("waltz_storage_write_rounds_total", "counter", "Rounds in which queued blocks were written together.", lambda each: each.write_rounds),
    _partition("waltz_storage_written_transactions_total", "counter", "Transactions that were written.", lambda each: each.transactions_written),
    _partition("waltz_storage_written_bytes_total", "counter", "Bytes of records that were written.", lambda each: each.bytes_written),
    _partition(
        "waltz_storage_unsynced_transactions",
        "gauge",
        "Acknowledged from memory and not on disk yet (`durability=quorum_memory`).",
        lambda each: each.unsynced_transactions,
    ),
    _partition(
        "waltz_storage_partition_writer_bytes",
        "gauge",
        "Received and not written or not synced yet, of the partition.",
        lambda each: each.writer_bytes,
    ),
)
