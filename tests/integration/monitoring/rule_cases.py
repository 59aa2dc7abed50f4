"""Series that make each alert fire, and series of a quiet cluster, as `promtool test rules` reads them.

A firing case is 10 minutes long and begins quietly; the alert must not fire in the first 15 seconds and must fire at the end.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FIRING", "QUIET", "QUIET_S", "Case"]

QUIET_S = 3600
STEP_S = 15


class Case(NamedTuple):
    """`labels` without `severity`; `within_s`: from the change in the series until the alert fires at the latest."""

    alert: str
    series: dict[str, str]
    labels: dict[str, str]
    summary: str
    within_s: int = 60


A = 'job="waltz-servers", instance="a:1"'
S = 'job="waltz-storage", instance="s:0"'
P = 'job="waltz-pipelines", instance="p:0", pipeline="legs"'
AT_A = {"job": "waltz-servers", "instance": "a:1"}
AT_S = {"job": "waltz-storage", "instance": "s:0"}
AT_P = {"job": "waltz-pipelines", "instance": "p:0", "pipeline": "legs"}

FIRING = (
    Case("WaltzProcessDown", {f"up{{{S}}}": "1x4 0x60"}, AT_S, "s:0 (waltz-storage) does not answer scrapes"),
    Case(
        "WaltzProcessStuck",
        {f"waltz_statistics_up{{{A}}}": "1x4 0x60"},
        AT_A,
        "a:1 answers scrapes and gives no statistics: it starts, or its event loop hangs",
    ),
    Case(
        "WaltzWorkerRestarted",
        {f'waltz_worker_restarts_total{{{A}, worker="0"}}': "2x4 3x60", f'waltz_worker_restarts_total{{{A}, worker="1"}}': "0x64"},
        AT_A,
        "Workers of a:1 ended by themselves and were restarted in the last 30 minutes",
    ),
    Case("WaltzClockOff", {f"waltz_time_seconds{{{A}}}": "0+15x4 200+15x60"}, AT_A, "The clock of a:1 differs from that of Prometheus by 2m 5s"),
    Case(
        "WaltzCoordinatorValueRefused",
        {f'waltz_coordinator_value_refused{{{A}, value="topics"}}': "_x4 1x60"},
        AT_A | {"value": "topics"},
        "a:1 refuses the topics in ZooKeeper and uses those that it knew",
    ),
    Case(
        "WaltzCertificateExpires",
        {f"waltz_certificate_expiry_timestamp_seconds{{{A}}}": "2000000x4 1000000x60"},
        AT_A,
        "The certificate of a:1, or of ZooKeeper as it sees it, expires in 11d 13h 44m 25s",
    ),
    Case(  # of ZooKeeper
        "WaltzCertificateExpires",
        {
            f"waltz_certificate_expiry_timestamp_seconds{{{A}}}": "2000000x64",
            f"waltz_coordinator_certificate_expiry_timestamp_seconds{{{A}}}": "2000000x4 1000000x60",
        },
        AT_A,
        "The certificate of a:1, or of ZooKeeper as it sees it, expires in 11d 13h 44m 25s",
    ),
    Case(  # a server owns it and reaches no majority
        "WaltzPartitionUnserved",
        {f'waltz_server_partition_accepts_appends{{{A}, partition="3"}}': "1x4 0x60"},
        {"partition": "3"},
        "Partition 3 accepts no appends",
    ),
    Case(  # no server knows it
        "WaltzPartitionUnserved",
        {
            f'waltz_storage_session{{{S}, partition="3"}}': "5x64",
            f'waltz_storage_session{{{S}, partition="4"}}': "5x64",
            f'waltz_server_partition_accepts_appends{{{A}, partition="3"}}': "1x4 stale",
            f'waltz_server_partition_accepts_appends{{{A}, partition="4"}}': "1x64",
        },
        {"partition": "3"},
        "Partition 3 accepts no appends",
    ),
    Case(
        "WaltzMajorityAtRisk",
        {
            f'waltz_server_partition_spare_replicas{{{A}, partition="0"}}': "1x4 0x60",
            f'waltz_server_partition_spare_replicas{{{A}, partition="1"}}': "1x64",
            f'waltz_server_replica_live{{{A}, partition="0", replica="s0"}}': "1x64",
            f'waltz_server_replica_live{{{A}, partition="0", replica="s1"}}': "1x4 0x60",
            f'waltz_server_replica_live{{{A}, partition="1", replica="s0"}}': "1x64",
        },
        {},
        "One more failure of a storage node stops appends to 1 partitions",
    ),
    Case(
        "WaltzReplicaMissing",
        {
            f'waltz_server_replica_live{{{A}, partition="0", replica="s1"}}': "1x4 0x60",
            f'waltz_server_replica_live{{{A}, partition="1", replica="s1"}}': "1x4 0x60",
            f'waltz_server_replica_live{{{A}, partition="1", replica="s0"}}': "1x64",
        },
        {"replica": "s1"},
        "2 replicas on s1 are missing and are not being filled",
    ),
    Case(
        "WaltzRefillStalled",
        {
            f'waltz_server_replica_fill_missing_bytes{{{A}, partition="0", replica="s1"}}': "6144-1024x4 1024x60",
            f'waltz_server_replica_filled_bytes_total{{{A}, partition="0", replica="s1"}}': "0+1024x4 4096x60",
            f'waltz_server_replica_fill_outpaced{{{A}, partition="0", replica="s1"}}': "0x64",
        },
        {"partition": "0", "replica": "s1"},
        "The replica of partition 0 on s1 lacks 1kiB and gets no closer",
        within_s=120,
    ),
    Case(
        "WaltzRefillStalled",
        {
            f'waltz_server_replica_fill_missing_bytes{{{A}, partition="0", replica="s1"}}': "1024x64",
            f'waltz_server_replica_filled_bytes_total{{{A}, partition="0", replica="s1"}}': "0+1024x64",
            f'waltz_server_replica_fill_outpaced{{{A}, partition="0", replica="s1"}}': "0x4 1x60",
        },
        {"partition": "0", "replica": "s1"},
        "The replica of partition 0 on s1 lacks 1kiB and gets no closer",
    ),
    Case(
        "WaltzLockTableFull",
        {
            f'waltz_server_lock_floor_conflicts_total{{{A}, partition="0"}}': "0x4 0+30x60",
            f'waltz_server_lock_entries{{{A}, partition="0"}}': "500x64",
            f'waltz_server_lock_entries_limit{{{A}, partition="0"}}': "1000x64",
        },
        {"partition": "0"},
        "Partition 0 rejects 2 appends a second because its lock table is full",
        within_s=75,
    ),
    Case(
        "WaltzUpkeepFailed",
        {f'waltz_server_upkeep_failed{{{A}, partition="0"}}': "0x4 1x60"},
        {"partition": "0"},
        "Retention and compaction of partition 0 fail, so its disks fill",
        within_s=630,
    ),
    Case(
        "WaltzDiskLow",
        {f'waltz_storage_disk_state{{{S}, state="low"}}': "0x4 1x60"},
        AT_S | {"state": "low"},
        "The disk of s:0 has less free space than disk_warn_free_bytes",
    ),
    Case(
        "WaltzDiskRefusesAppends",
        {f'waltz_storage_disk_state{{{S}, state="refusing"}}': "0x4 1x60"},
        AT_S | {"state": "refusing"},
        "s:0 refuses appends: its disk is full or cannot be written to",
    ),
    Case(
        "WaltzDiskRefusesAppends",
        {f"waltz_storage_disk_writable{{{S}}}": "1x4 0x60"},
        AT_S,
        "s:0 refuses appends: its disk is full or cannot be written to",
    ),
    Case(
        "WaltzReplicaStopped",
        {f'waltz_storage_partition_served{{{S}, partition="0"}}': "1x4 0x60", f'waltz_storage_partition_served{{{S}, partition="1"}}': "1x64"},
        AT_S,
        "s:0 stopped serving 1 partitions after a failed write or because of damaged data",
    ),
    Case(
        "WaltzCorruptionUnrepaired",
        {f"waltz_storage_damaged_segments{{{S}}}": "0x4 2x60", f"waltz_storage_corruption_repaired_total{{{S}}}": "5x64"},
        AT_S,
        "2 segments of s:0 are damaged and are not repaired",
    ),
    Case(
        "WaltzCorruptionFound",
        {f"waltz_storage_corruption_found_total{{{S}}}": "1x4 2x60"},
        AT_S,
        "s:0 found damaged data in the last hour: a disk may begin to fail",
    ),
    Case("WaltzPipelineDown", {f"waltz_pipeline_running{{{P}}}": "1x4 0x60"}, AT_P, "Pipeline legs does not run"),
    Case("WaltzTableLag", {f"waltz_pipeline_lag_seconds{{{P}}}": "0x4 360x60"}, AT_P, "The table of pipeline legs is 6m 0s behind the log"),
    Case(
        "WaltzDeadLetters",
        {f"waltz_pipeline_dead_letters_total{{{P}}}": "1x4 2x60"},
        AT_P,
        "Pipeline legs set transactions aside as dead letters in the last 15 minutes",
    ),
)

QUIET = {
    f"up{{{A}}}": "1x240",
    'up{job="other", instance="x:1"}': "0x240",
    f"waltz_statistics_up{{{A}}}": "1x240",
    f'waltz_worker_restarts_total{{{A}, worker="0"}}': "3x240",
    f"waltz_time_seconds{{{A}}}": "2+15x240",
    f"waltz_certificate_expiry_timestamp_seconds{{{A}}}": "2000000x240",
    f"waltz_coordinator_certificate_expiry_timestamp_seconds{{{A}}}": "2000000x240",
    # A value that is repaired at once.
    f'waltz_coordinator_value_refused{{{A}, value="topics"}}': "_x100 1 stale",
    f'waltz_server_partition_accepts_appends{{{A}, partition="0"}}': "1x240",
    # Partition 1 moves to another server within 30 s.
    f'waltz_server_partition_accepts_appends{{{A}, partition="1"}}': "1x100 stale",
    'waltz_server_partition_accepts_appends{job="waltz-servers", instance="b:1", partition="1"}': "_x101 0 1x137",
    f'waltz_storage_session{{{S}, partition="0"}}': "5x240",
    f'waltz_storage_session{{{S}, partition="1"}}': "5x240",
    f'waltz_server_partition_spare_replicas{{{A}, partition="0"}}': "1x240",
    # A partition of one replica has never a spare one.
    f'waltz_server_partition_spare_replicas{{{A}, partition="1"}}': "0x240",
    f'waltz_server_replica_live{{{A}, partition="0", replica="s0"}}': "1x240",
    f'waltz_server_replica_live{{{A}, partition="1", replica="s0"}}': "1x240",
    # A replica that is added and filled.
    f'waltz_server_replica_live{{{A}, partition="0", replica="s1"}}': "0x240",
    f'waltz_server_replica_fill_missing_bytes{{{A}, partition="0", replica="s1"}}': "300000000-1000000x240",
    f'waltz_server_replica_filled_bytes_total{{{A}, partition="0", replica="s1"}}': "0+1000000x240",
    f'waltz_server_replica_fill_outpaced{{{A}, partition="0", replica="s1"}}': "0x240",
    # Conflicts after a failover, while the table is nearly empty.
    f'waltz_server_lock_floor_conflicts_total{{{A}, partition="0"}}': "0+5x240",
    f'waltz_server_lock_entries{{{A}, partition="0"}}': "10+10x240",
    f'waltz_server_lock_entries_limit{{{A}, partition="0"}}': "1000000x240",
    f'waltz_server_upkeep_failed{{{A}, partition="0"}}': "0x100 1x20 0x118",
    f'waltz_storage_disk_state{{{S}, state="ample"}}': "1x240",
    f'waltz_storage_disk_state{{{S}, state="low"}}': "0x240",
    f'waltz_storage_disk_state{{{S}, state="refusing"}}': "0x240",
    f"waltz_storage_disk_writable{{{S}}}": "1x240",
    f'waltz_storage_partition_served{{{S}, partition="0"}}': "1x240",
    f"waltz_storage_damaged_segments{{{S}}}": "0x240",
    f"waltz_storage_corruption_found_total{{{S}}}": "2x240",
    f"waltz_storage_corruption_repaired_total{{{S}}}": "2x240",
    f"waltz_pipeline_running{{{P}}}": "1x240",
    f"waltz_pipeline_lag_seconds{{{P}}}": "4x240",
    f"waltz_pipeline_dead_letters_total{{{P}}}": "7x240",
}
