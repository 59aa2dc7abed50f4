from __future__ import annotations

from waltz_log.core.ports import Method
from waltz_log.transport import methods
from waltz_log.transport.gathering import GATHERED
from waltz_log.transport.routes import route_of

OFFERED = {name: found for name, found in vars(methods).items() if isinstance(found, Method)}


def test_every_procedure_is_routed_by_its_partition_or_answered_by_all_workers_together() -> None:
    assert {name for name, method in OFFERED.items() if route_of(method) is None} == {"BOUND", "SERVER_STATUS", "STORAGE_STATUS"}
    assert {method for method in OFFERED.values() if route_of(method) is None} == set(GATHERED)


def test_the_way_to_the_partition_is_that_of_the_messages() -> None:
    assert route_of(methods.RESOLVE) == (1,)
    assert route_of(methods.READ) == (2,)
    assert route_of(methods.MOUNT) == (1, 4)
    assert route_of(methods.REPLICATE) == (1, 2)
