"""Which role each procedure needs, and whose name a request carries."""

from __future__ import annotations

import pytest

from waltz_log.core.ports import Method
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import NotAllowed, PermissionDenied, decode, encode
from waltz_log.security.identity import Identity, Role
from waltz_log.security.permits import PERMITTED, admit, attribute
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

METHODS = sorted((each for each in vars(methods).values() if isinstance(each, Method)), key=lambda method: method.name)
FENCES_OR_WRITES = {
    "Open", "SetLowWaterMark", "KeepProgress", "Truncate", "Replicate", "Direct", "Describe", "Trim", "Begin", "Compact", "LoadView", "DropView",
}  # fmt: skip


def _identity(*roles: Role) -> Identity:
    return Identity("spiffe://waltz/test/a", frozenset(roles))


def test_the_table_has_a_row_for_every_procedure_and_no_other() -> None:
    assert set(PERMITTED) == {method.name for method in METHODS}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name.rpartition("/")[2])
def test_a_procedure_that_changes_a_replica_is_permitted_to_nodes_alone(method: Method[object, object]) -> None:  # type: ignore[type-var]
    if method.name.rpartition("/")[2] in FENCES_OR_WRITES and method != methods.SERVER_DIRECT:
        assert PERMITTED[method.name] == {Role.NODE}
    admit(_identity(Role.NODE), method.name)
    for nobody in (None, _identity()):
        with pytest.raises(PermissionDenied):
            admit(nobody, method.name)


def test_a_procedure_without_a_row_is_permitted_to_nodes_alone() -> None:
    admit(_identity(Role.NODE), "/waltz.Server/New")
    with pytest.raises(PermissionDenied):
        admit(_identity(Role.OPERATOR, Role.APPLICATION, Role.READER), "/waltz.Server/New")


def test_a_reader_mounts_only_without_a_client_id() -> None:
    admit(_identity(Role.READER), methods.MOUNT.name, pb.ClientMessage(mount=pb.MountRequest(feed=pb.FEED_RECORDS)))
    with pytest.raises(PermissionDenied, match="application, node, operator"):
        admit(_identity(Role.READER), methods.MOUNT.name, pb.ClientMessage(mount=pb.MountRequest(client_id=1)))
    admit(_identity(Role.APPLICATION), methods.MOUNT.name, pb.ClientMessage(mount=pb.MountRequest(client_id=1)))


def test_the_name_in_the_certificate_replaces_the_name_in_the_request() -> None:
    identity = Identity("spiffe://waltz/application/orders", frozenset({Role.APPLICATION}))
    mount = pb.ClientMessage(mount=pb.MountRequest(principal="somebody else"))
    assert attribute(mount, identity)
    assert mount.mount.principal == identity.principal
    read = pb.ReadRequest()
    assert attribute(read, identity)
    assert read.principal == identity.principal
    assert not attribute(read, identity)


def test_a_request_without_a_principal_stays_as_it_is() -> None:
    identity = _identity(Role.APPLICATION)
    frame = pb.ClientMessage(append=pb.AppendFrame(generation=1))
    assert not attribute(frame, identity)
    assert not attribute(pb.BoundRequest(), identity)
    assert frame == pb.ClientMessage(append=pb.AppendFrame(generation=1))


def test_only_a_node_reads_in_the_name_of_the_cluster() -> None:
    of_node, of_other = pb.ReadRequest(principal=CLUSTER_PRINCIPAL), pb.ReadRequest(principal=CLUSTER_PRINCIPAL)
    attribute(of_node, _identity(Role.NODE))
    attribute(of_other, _identity(Role.OPERATOR))
    assert of_node.principal == CLUSTER_PRINCIPAL
    assert of_other.principal == "spiffe://waltz/test/a"


def test_a_denial_names_principal_operation_and_roles_and_survives_the_wire() -> None:
    with pytest.raises(NotAllowed) as caught:
        admit(_identity(Role.READER), methods.TRUNCATE.name)
    copy = decode(encode(caught.value))
    assert isinstance(copy, PermissionDenied)
    assert (copy.principal, copy.operation, copy.roles) == ("spiffe://waltz/test/a", methods.TRUNCATE.name, "node")
    assert str(copy) == f"permission denied: spiffe://waltz/test/a has no role for {methods.TRUNCATE.name}: roles=node"
