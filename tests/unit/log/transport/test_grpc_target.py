"""A channel to a host whose name gRPC would read as something else."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from waltz_log.errors import WaltzError
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.grpc import GrpcNetwork
from waltz_log.transport.grpc_target import target_of
from waltz_log.transport.methods import PING


@pytest.mark.parametrize("name", ["dns", "unix", "ipv4", "ipv6", "xds", "vsock", "unix-abstract"])
async def test_a_host_is_looked_up_whatever_its_name_is(name: str) -> None:
    """The lookup fails, since nothing has this name here: with the whole address, and not with the port as a host."""
    channel = GrpcNetwork().connect(f"{name}:5101")
    with pytest.raises(WaltzError, match=rf"resolving {name}:5101"):
        await channel.call(PING, pb.PingRequest(), timeout_s=10)
    await channel.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_addresses_and_names_are_reached(host: str) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("localhost:0" if host == "localhost" else f"{host}:0")
    await server.start()
    async with grpc.aio.insecure_channel(target_of(f"{host}:{port}")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as answered:
            await channel.unary_unary("/nothing/Here", request_serializer=bytes, response_deserializer=bytes)(b"", timeout=10)
        assert answered.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_a_node_announces_the_configured_name(host: str) -> None:
    async def pong(request: pb.PingRequest) -> pb.PingResponse:
        return pb.PingResponse()

    network = GrpcNetwork()
    listener = await network.serve(f"{host}:0", [PING.served_by(pong)])
    assert listener.address.rpartition(":")[0] == host
    channel = network.connect(listener.address)
    await channel.call(PING, pb.PingRequest(), timeout_s=10)
    await channel.close()
    await listener.close()
