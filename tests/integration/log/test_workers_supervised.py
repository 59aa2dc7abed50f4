"""The supervisor and its worker processes, without a cluster: addresses, a worker that cannot start, what each worker may use."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from waltz_log.core.restart_policy import RestartPolicy
from waltz_log.errors import WorkerFailed, exit_code_of
from waltz_log.exit_codes import MACHINE
from waltz_log.processes import server, storage
from waltz_log.processes.socket_folder import SocketFolder
from waltz_log.processes.supervisor import NodeAddresses, Workers
from waltz_log.processes.worker_link import Orders
from waltz_log.server import ServerSettings
from waltz_log.storage import StorageSettings
from waltz_log.transport.addresses import ReservedAddress
from waltz_log.transport.grpc import GrpcNetwork


async def test_a_worker_that_never_stays_up_ends_the_node_with_a_clear_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with NodeAddresses("127.0.0.1:0", 1) as addresses:
        orders = Orders("storage", {"nonsense": 1}, worker=-1, workers=1, address=addresses.address, siblings=addresses.siblings)
        async with Workers(orders, policy=RestartPolicy(pause_base_s=0.01, short_lives_max=1)) as workers:
            with pytest.raises(WorkerFailed) as failed:
                await asyncio.wait_for(workers.start(), 60)
            assert not workers.serve
    assert failed.value.facts == {"worker": 0, "lives": 2, "ended": "exit code 2"}
    assert str(failed.value) == "a worker does not stay up; what it logged before it ended says why: exit code 2: worker=0 lives=2"
    assert exit_code_of(failed.value) == MACHINE
    reported = capfd.readouterr().err
    assert reported.count("waltz: worker 0: nonsense: no such setting") == 2
    assert "never retrieved" not in reported


def test_the_address_of_a_node_stays_its_own_and_no_other_nodes() -> None:
    with NodeAddresses("127.0.0.1:0", 2) as addresses:
        with pytest.raises(OSError, match="cannot listen on"):
            ReservedAddress(addresses.address)
        host, _, port = addresses.address.rpartition(":")
        with socket.socket() as single:
            single.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError):
                single.bind((host, int(port)))
                single.listen()
        folder = Path(addresses.siblings[0].removeprefix("unix:")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(set(addresses.siblings)) == 2
    assert not folder.exists()
    ReservedAddress(addresses.address).close()


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999999999", "no.such.host.invalid:1"])
def test_an_invalid_address_is_refused(listen: str) -> None:
    with pytest.raises(OSError, match="cannot listen on"):
        ReservedAddress(listen)


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "127.0.0.1:65536"])
async def test_an_invalid_port_is_refused_and_not_replaced_by_another(listen: str) -> None:
    with pytest.raises(OSError, match="cannot listen on"):
        await GrpcNetwork().serve(listen, [])


def test_an_address_with_a_listener_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match=r"cannot listen on .*: Address already in use"):
        NodeAddresses(f"127.0.0.1:{taken.getsockname()[1]}", 2)


def test_an_address_is_reserved_as_soon_as_its_last_listener_ends() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(OSError, match="cannot listen on"):
        ReservedAddress(address, within_s=0)
    ending = threading.Timer(0.5, taken.close)
    ending.start()
    reserved = ReservedAddress(address, within_s=60)
    ending.join()
    assert reserved.address == address
    reserved.close()


def test_connections_that_a_node_without_workers_closed_do_not_keep_its_address() -> None:
    """They stay in TIME_WAIT for a minute, and do not share the port: so a node failed that was restarted with `workers: 2`."""
    with socket.create_server(("127.0.0.1", 0)) as single:
        at = single.getsockname()
        with socket.create_connection(at) as peer:
            single.accept()[0].close()
            assert peer.recv(1) == b""
    with socket.socket() as shared, pytest.raises(OSError, match="in use"):
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind(at)
    reserved = ReservedAddress(f"127.0.0.1:{at[1]}", within_s=0)
    with socket.socket() as worker:
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        worker.bind(at)
        worker.listen()
        with pytest.raises(OSError, match="Address already in use"):
            ReservedAddress(reserved.address, within_s=0)
    reserved.close()


def test_the_limits_of_a_node_are_shared_among_its_workers(tmp_path: Path) -> None:
    whole = {
        "open_files_max": 400,
        "writer_bytes_max": 8 << 20,
        "scrub_bytes_per_s": 4000,
        "repair_bytes_per_s": 8192,
        "compaction_bytes_per_s": 8000,
    }
    settings = StorageSettings(coordinator="c", name="n", directory=tmp_path, workers=4).model_copy(update=whole)
    share = storage.share_of(settings)
    assert share == settings.model_copy(update={name: of // 4 for name, of in whole.items()})
    assert storage.share_of(settings.model_copy(update={"scrub_bytes_per_s": 0})).scrub_bytes_per_s == 0
    assert storage.share_of(settings.model_copy(update={"scrub_bytes_per_s": 3})).scrub_bytes_per_s == 1
    assert storage.share_of(settings.model_copy(update={"open_files_max": 20})).open_files_max == 16
    caches = ServerSettings(coordinator="c", workers=4, transaction_cache_bytes=8 << 20, feed_cache_bytes=2 << 20)
    assert server.share_of(caches) == caches.model_copy(update={"transaction_cache_bytes": 2 << 20, "feed_cache_bytes": 1 << 20})


def test_the_smallest_share_is_one_that_a_worker_accepts(tmp_path: Path) -> None:
    least = {"open_files_max": 16, "writer_bytes_max": 1 << 20, "scrub_bytes_per_s": 1, "repair_bytes_per_s": 1024, "compaction_bytes_per_s": 1024}
    settings = StorageSettings(coordinator="c", name="n", directory=tmp_path, workers=64).model_copy(update=least)
    share = storage.share_of(settings)
    assert StorageSettings(**share.model_dump(mode="json")) == share == settings
    caches = ServerSettings(coordinator="c", workers=64, transaction_cache_bytes=1 << 20, feed_cache_bytes=1 << 20)
    assert ServerSettings(**server.share_of(caches).model_dump(mode="json")) == caches


def test_folders_of_killed_supervisors_are_removed_and_those_in_use_are_not(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path_factory.mktemp("s")  # not `tmp_path`: the path of a socket is short
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    in_use = SocketFolder()
    young, left, other = (parent / name for name in ("waltz-sockets-young", "waltz-sockets-left", "other"))
    for folder in (young, left, other):
        folder.mkdir()
        (folder / "0").touch()
    for folder in (in_use.path, left, other):
        os.utime(folder, (0, 0))
    SocketFolder().close()
    assert sorted(parent.iterdir()) == sorted([in_use.path, young, other])
    in_use.close()
    assert not in_use.path.exists()
