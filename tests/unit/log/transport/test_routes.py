from __future__ import annotations

from waltz_log.core.ports import Method
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.gathering import GATHERED
from waltz_log.transport.routes import ANYWHERE, partition_of, route_of

OFFERED = {name: found for name, found in vars(methods).items() if isinstance(found, Method)}


def test_every_procedure_is_routed_by_its_partition_or_answered_by_all_workers_together() -> None:
    assert {method for method in OFFERED.values() if route_of(method) is None} == set(GATHERED) | ANYWHERE
    assert not set(GATHERED) & ANYWHERE


def test_the_way_to_the_partition_is_that_of_the_messages() -> None:
    assert route_of(methods.RESOLVE) == ("partition",)
    assert route_of(methods.READ) == ("partition",)
    assert route_of(methods.MOUNT) == ("mount", "partition")
    assert route_of(methods.REPLICATE) == ("open", "partition")


def test_the_partition_is_read_from_the_first_message() -> None:
    assert partition_of(pb.ReadRequest(partition=7), ("partition",)) == 7
    assert partition_of(pb.ClientMessage(mount=pb.MountRequest(partition=7)), ("mount", "partition")) == 7
    assert partition_of(pb.ClientMessage(flush=pb.FlushRequest(flush_id=9)), ("mount", "partition")) == 0
