"""An application that appends at a fixed rate, whatever becomes of the log: `appender.py CLUSTER NAME RATE PARTITIONS`, until a line on stdin.

It runs with this version and with the last release, so it uses only what both have. It prints one JSON object: `acknowledged` (value to partition and
transaction id), `rejected` values, and `latencies_ms` with the moment in seconds, each counted from when the append was due, sent or not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from waltz_log.client import WaltzClient
from waltz_log.errors import NotAppended, OutcomeUnknown

APPEND_TIMEOUT_S = 60.0


async def main(cluster: str, name: str, rate: int, partitions: int) -> None:
    acknowledged: dict[str, tuple[int, int]] = {}
    rejected: list[str] = []
    latencies: list[tuple[float, float]] = []
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    async with WaltzClient.open(cluster) as client:

        async def one(number: int, due: float) -> None:
            value, partition = f"{name}-{number}", number % partitions
            try:
                receipt = await client.append(partition, value.encode(), timeout_s=APPEND_TIMEOUT_S)
            except NotAppended:
                receipt = None
            except OutcomeUnknown as unknown:
                receipt = await client.resolve(unknown, timeout_s=APPEND_TIMEOUT_S)
            if receipt is None:
                rejected.append(value)
            else:
                acknowledged[value] = (partition, receipt.transaction_id)
            latencies.append((time.time(), (time.monotonic() - due) * 1000))

        await client.append(0, f"{name}-first".encode(), timeout_s=APPEND_TIMEOUT_S)
        print("appending", flush=True)
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as pending:
            while not stop.done():
                while (due := began + number / rate) <= time.monotonic():
                    pending.create_task(one(number, due))
                    number += 1
                await asyncio.sleep(0.002)
    print(json.dumps({"acknowledged": acknowledged, "rejected": rejected, "latencies_ms": latencies}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
