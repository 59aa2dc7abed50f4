"""Many connections to some ports, from a separate process: a third sends nothing, a third random bytes, a third one byte every ten seconds.

`python -m verification.strangers.attack --seconds 30 --connections 300 127.0.0.1:5101 ...`. A connection that the peer closes is made again after a
while. Prints one line of JSON when it ends: how many connections it made, and the most that were open at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
from typing import Final

KINDS: Final = ("nothing", "garbage", "slow")

AGAIN_S: Final = 5.0
"""The longest pause of a stranger that was sent away: about as long as the shortest deadline of a handshake."""

BYTE_S: Final = 10.0

BEGINNING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""How a peer of gRPC without TLS begins. With TLS it is garbage."""


class Attack:
    """`run` keeps the connections until it is cancelled."""

    def __init__(self, addresses: list[tuple[str, int]], connections: int, seed: int) -> None:
        self._addresses = addresses
        self._connections = connections
        self._rng = random.Random(seed)
        self.made = self.open = self.open_most = 0

    async def run(self, seconds: float) -> None:
        tasks = [asyncio.ensure_future(self._stranger(number)) for number in range(self._connections)]
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*tasks)
        except TimeoutError:
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stranger(self, number: int) -> None:
        kind, address = KINDS[number % len(KINDS)], self._addresses[number // len(KINDS) % len(self._addresses)]
        while True:
            await asyncio.sleep(AGAIN_S * self._rng.random())
            try:
                reader, writer = await asyncio.open_connection(*address)
            except OSError:
                continue
            self.made += 1
            self.open += 1
            self.open_most = max(self.open_most, self.open)
            try:
                await self._connected(kind, reader, writer)
            except OSError:
                pass  # the peer closed it, which is what it should do
            finally:
                self.open -= 1
                writer.transport.abort()

    async def _connected(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = asyncio.ensure_future(_until_closed(reader))
        try:
            if kind == "garbage":
                writer.write(self._rng.randbytes(self._rng.randrange(1, 4096)))
            for byte in BEGINNING if kind == "slow" else b"":
                writer.write(bytes([byte]))
                if (await asyncio.wait([ended], timeout=BYTE_S))[0]:
                    break
            await ended
        finally:
            ended.cancel()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.strangers.attack")
    parser.add_argument("addresses", nargs="+", help="host:port")
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    addresses = [(address.rpartition(":")[0], int(address.rpartition(":")[2])) for address in given.addresses]
    attack = Attack(addresses, given.connections, given.seed)
    asyncio.run(attack.run(given.seconds))
    print(json.dumps({"made": attack.made, "open_most": attack.open_most}))


if __name__ == "__main__":
    main()
