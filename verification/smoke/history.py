"""The evidence of a smoke run: what each client sent, received and read, and what the log holds of each partition. Stored in columns, not objects,
because there are millions of transactions. A client's history travels from its process to the judge as a file.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from verification.smoke.payload import decode
from waltz_log.client import Transaction

__all__ = ["ClientHistory", "PartitionLog", "Reported", "SmokeHistory", "chained"]


class Reported(IntEnum):
    """The final outcome of an attempt, as its client knows it. `RESOLVED`, `ABSENT`: after *unknown*, by a query to the log."""

    PENDING = 0
    COMMITTED = 1
    REJECTED = 2
    NOT_APPENDED = 3
    UNKNOWN = 4
    RESOLVED = 5
    ABSENT = 6


IN_LOG = (Reported.COMMITTED, Reported.RESOLVED)
NOT_IN_LOG = (Reported.REJECTED, Reported.NOT_APPENDED, Reported.ABSENT)


def chained(chain: int, transaction: Transaction) -> int:
    """The checksum of a feed up to and with the transaction. Clients that read the same feed have the same."""
    return zlib.crc32(transaction.data, chain)


@dataclass
class ClientHistory:
    """Attempts by their number. `transaction_id`: where it is in the log, or the winner of a rejected one; -1: none. Times are of the machine's
    monotonic clock, which all processes share."""

    client: int
    followed: int = 0
    """The partition whose feed it read."""
    fed: int = -1
    """The last transaction that it was fed."""
    chain: int = 0
    partition: array[int] = field(default_factory=lambda: array("B"))
    reported: array[int] = field(default_factory=lambda: array("B"))
    transaction_id: array[int] = field(default_factory=lambda: array("q"))
    began_s: array[float] = field(default_factory=lambda: array("d"))
    ended_s: array[float] = field(default_factory=lambda: array("d"))
    complaints: list[str] = field(default_factory=list)
    """What only the client could see."""

    def begin(self, partition: int, now_s: float) -> int:
        """The number of a new attempt."""
        number = len(self.reported)
        self.partition.append(partition)
        self.reported.append(Reported.PENDING)
        self.transaction_id.append(-1)
        self.began_s.append(now_s)
        self.ended_s.append(-1.0)
        return number

    def end(self, number: int, reported: Reported, transaction_id: int, now_s: float) -> None:
        self.reported[number] = reported
        self.transaction_id[number] = transaction_id
        self.ended_s[number] = now_s

    def save(self, path: Path) -> None:
        np.savez(
            path,
            facts=np.array([self.client, self.followed, self.fed, self.chain]),
            partition=np.array(self.partition, np.uint8),
            reported=np.array(self.reported, np.uint8),
            transaction_id=np.array(self.transaction_id, np.int64),
            began_s=np.array(self.began_s),
            ended_s=np.array(self.ended_s),
            complaints=np.array(self.complaints, np.str_),
        )

    @classmethod
    def load(cls, path: Path) -> ClientHistory:
        with np.load(path) as kept:
            client, followed, fed, chain = (int(each) for each in kept["facts"])
            return cls(
                client,
                followed,
                fed,
                chain,
                array("B", kept["partition"].tobytes()),
                array("B", kept["reported"].tobytes()),
                array("q", kept["transaction_id"].tobytes()),
                array("d", kept["began_s"].tobytes()),
                array("d", kept["ended_s"].tobytes()),
                [str(each) for each in kept["complaints"]],
            )


@dataclass
class PartitionLog:
    """A partition as a reader has it in the end, in the order of the log. `lock_counts`: write, read and append locks of each."""

    transaction_id: array[int] = field(default_factory=lambda: array("q"))
    client: array[int] = field(default_factory=lambda: array("H"))
    number: array[int] = field(default_factory=lambda: array("I"))
    mark: array[int] = field(default_factory=lambda: array("q"))
    lock_counts: array[int] = field(default_factory=lambda: array("B"))
    locks: array[int] = field(default_factory=lambda: array("I"))
    request: array[int] = field(default_factory=lambda: array("Q"))
    """Client id of the log and sequence, as one number."""
    generation: array[int] = field(default_factory=lambda: array("i"))
    chain: array[int] = field(default_factory=lambda: array("I"))
    """The checksum of everything up to and with each transaction."""

    def add(self, transaction: Transaction) -> None:
        sent = decode(transaction.data)
        self.transaction_id.append(transaction.transaction_id)
        self.client.append(sent.client)
        self.number.append(sent.number)
        self.mark.append(sent.mark)
        self.lock_counts.extend((sent.write, sent.read, sent.append))
        self.locks.extend(sent.locks)
        self.request.append((transaction.client_id & 0xFFFF_FFFF) << 32 | transaction.sequence)
        self.generation.append(transaction.generation)
        self.chain.append(chained(self.chain[-1] if self.chain else 0, transaction))


@dataclass
class SmokeHistory:
    """`clients` by their number, `logs` by partition; `replicas`: of each partition the digest that each storage node gives, or its error."""

    clients: list[ClientHistory]
    logs: dict[int, PartitionLog]
    replicas: dict[int, dict[str, str]]

    def reports_of(self, client: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.clients[client].reported, np.uint8)
