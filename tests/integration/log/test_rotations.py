"""A hundred rotations of all certificates and keys of a cluster under load: no append fails, and no feed breaks (`make rotations`)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from waltz_log.client import ClientSettings, SyncWaltzClient
from waltz_log.errors import WaltzError
from waltz_log.processes.local_cluster import LocalCluster
from waltz_log.security.authority import DevelopmentAuthority

ROTATIONS = 100
ROTATION_S = 0.7
"""Longer than the pause between two reads of the files, so that each certificate is used."""

REMOUNT_EACH = 5
"""Rotations between two new clients: only new connections use new certificates."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_hundred_rotations_fail_no_append_and_break_no_feed(tmp_path: Path) -> None:
    stop, appended, read, failed = threading.Event(), list[int](), list[int](), list[WaltzError]()
    with LocalCluster(tmp_path, partitions=2, storages=3, servers=2, secure=True) as cluster:
        authority = DevelopmentAuthority(cluster.directory / "certificates")
        settings = ClientSettings(tls=cluster.certificate("application", "rotating"), append_timeout_s=60, connect_timeout_s=60)

        def append(client: SyncWaltzClient) -> None:
            while not stop.is_set():
                try:
                    appended.append(client.append(0, b"rotating").transaction_id)
                except WaltzError as error:
                    failed.append(error)

        def follow(client: SyncWaltzClient, first: int) -> None:
            try:
                for transaction in client.feed(0, after=first - 1):
                    read.append(transaction.transaction_id)
                    if stop.is_set() and appended and transaction.transaction_id >= appended[-1]:
                        return
            except WaltzError as error:
                failed.append(error)

        with SyncWaltzClient(cluster.cluster, settings) as client, SyncWaltzClient(cluster.cluster, settings) as reader:
            first = client.append(0, b"first").transaction_id
            threads = [threading.Thread(target=append, args=(client,)), threading.Thread(target=follow, args=(reader, first))]
            for thread in threads:
                thread.start()
            try:
                for number in range(ROTATIONS):
                    for name in (*cluster.storage_names, *cluster.server_names):
                        authority.issue("node", name)
                    authority.issue("application", "rotating")
                    if number % REMOUNT_EACH == 0:
                        with SyncWaltzClient(cluster.cluster, settings) as fresh:
                            fresh.append(1, b"fresh")
                    time.sleep(ROTATION_S)
            finally:
                stop.set()
                threads[0].join()
                client.append(0, b"last")  # the feed ends with something to read
                threads[1].join(60)
        assert failed == []
        assert read[: len(appended)] == list(range(first, first + len(appended)))
        logs = [cluster.log(name).read_text() for name in (*cluster.server_names, *cluster.storage_names)]
        reloaded = sum(text.count("certificate reloaded") for text in logs)
        assert reloaded >= ROTATIONS // REMOUNT_EACH // 2, "new clients were served with new certificates"
        assert not any("Traceback" in text for text in logs)
