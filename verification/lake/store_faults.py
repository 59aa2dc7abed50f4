"""How an object store fails, for tests: single requests, every request from some moment on, or requests that are drawn.

`faulty_store` starts a server as a process of its own, because parts of `deltalake` hold Python's lock while they wait for the store. The test
chooses its faults while it runs.

    python -m verification.lake.store_faults    serves until standard input ends; each line is an `Order`, and is answered with one line
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from verification.lake.s3_server import Fault, S3Server

__all__ = ["DRAWN", "FAULTS", "NONE", "PERMANENT", "FaultyStore", "drawn", "faulty_store", "from_then_on", "is_commit", "twice"]

ROOT: Final = Path(__file__).resolve().parents[2]

Faults = Callable[[str, str], Fault | None]
"""What a request meets, by its method and key."""


def is_commit(method: str, key: str) -> bool:
    return method == "PUT" and key.endswith(".json")


FAULTS: Final[Mapping[str, tuple[Callable[[str, str], bool], Fault]]] = {
    "the answer to a commit is lost": (is_commit, Fault(500, "InternalError", executed=True)),
    "a commit is refused": (is_commit, Fault(503)),
    "a conflict that is none": (is_commit, Fault(409, "ConditionalRequestConflict")),
    "a slow answer": (lambda method, key: True, Fault(200, "", delay_s=0.1)),
    "a read fails": (lambda method, key: method in ("GET", "HEAD"), Fault(503)),
    "a read of a data file fails": (lambda method, key: method == "GET" and key.endswith(".parquet"), Fault(500, "InternalError")),
    "the answer to a write is lost": (
        lambda method, key: method in ("POST", "PUT") and key.endswith(".parquet"),
        Fault(500, "InternalError", executed=True),
    ),
    "a part is refused": (lambda method, key: method != "GET" and key.endswith(".parquet"), Fault(503)),
}
"""Each passes: the requests that meet it, and what it is."""

PERMANENT: Final[Mapping[str, tuple[Fault, str]]] = {
    "the bucket disappears": (Fault(404, "NoSuchBucket"), "NoSuchBucket"),
    "credentials expire": (Fault(403, "ExpiredToken"), "ACCESS_DENIED|ExpiredToken"),
    "the store stays overloaded": (Fault(503), "503|SLOW_DOWN|SlowDown"),
}
"""Each meets every request from some moment on: what it is, and a pattern of what the error says."""

NONE: Final = "none"
DRAWN: Final = "drawn"
SHARE: Final = 0.03
"""Of the requests that meet a drawn fault."""
OUTAGE_SHARE, OUTAGE_REQUESTS = 0.0007, 15
"""How often an outage begins, and how many requests it meets: more than are repeated."""


def twice(name: str) -> tuple[Faults, list[str]]:
    """The fault for the first two requests that can meet it; the keys of these requests."""
    meets, fault = FAULTS[name]
    met: list[str] = []

    def two(method: str, key: str) -> Fault | None:
        if len(met) < 2 and meets(method, key):
            met.append(key)
            return fault
        return None

    return two, met


def from_then_on(fault: Fault, begins: Callable[[str, str], bool] = lambda method, key: True) -> Faults:
    """The fault for every request from the first one that `begins` on."""
    begun: list[str] = []

    def all_of_them(method: str, key: str) -> Fault | None:
        if not begun and begins(method, key):
            begun.append(key)
        return fault if begun else None

    return all_of_them


def drawn(seed: int) -> Faults:
    """Faults that pass, and outages that are longer than requests are repeated, drawn for each request."""
    random, outage = Random(seed), [0]

    def draw(method: str, key: str) -> Fault | None:
        if outage[0]:
            outage[0] -= 1
            return Fault(503)
        at = random.random()
        if at < OUTAGE_SHARE:
            outage[0] = OUTAGE_REQUESTS
        if at > SHARE:
            return None
        possible = [fault for meets, fault in FAULTS.values() if meets(method, key)]
        return random.choice(possible)

    return draw


@dataclass(frozen=True)
class Order:
    """What the server does from now on: a fault by its name. `begins`: with the first request to write a file whose key has this in it; at once if
    it is empty. `seed`: of drawn ones."""

    fault: str = NONE
    begins: str = ""
    seed: int = 0

    def faults(self) -> Faults:
        if self.fault == NONE:
            return lambda method, key: None
        if self.fault == DRAWN:
            return drawn(self.seed)
        if self.fault in FAULTS:
            return twice(self.fault)[0]
        return from_then_on(PERMANENT[self.fault][0], lambda method, key: method in ("PUT", "POST") and self.begins in key if self.begins else True)


class FaultyStore:
    """A server that runs, and whose faults are set from here."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        assert server.stdout is not None
        self._server, self._answers = server, server.stdout
        self.storage: dict[str, str] = json.loads(self._answers.readline())
        """Storage options for the server."""

    @property
    def patient(self) -> dict[str, str]:
        """Storage options by which a drawn fault is passed, and an outage is reported within seconds."""
        return {**self.storage, "max_retries": "4", "retry_timeout": "10s", "timeout": "5s", "connect_timeout": "2s"}

    @property
    def hasty(self) -> dict[str, str]:
        """Storage options by which a permanent fault is reported at once."""
        return {**self.storage, "max_retries": "1", "retry_timeout": "2s", "timeout": "2s", "connect_timeout": "2s"}

    def fail(self, fault: str, *, begins: str = "", seed: int = 0) -> int:
        """Sets what requests meet from now on, `NONE` included. Returns how many met the fault before."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asdict(Order(fault, begins, seed))) + "\n")
        self._server.stdin.flush()
        return int(self._answers.readline())


@contextmanager
def faulty_store() -> Iterator[FaultyStore]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-m", __name__], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as server:
        try:
            yield FaultyStore(server)
        finally:
            assert server.stdin is not None
            server.stdin.close()


def main() -> int:
    met: list[Fault] = []
    with S3Server() as server:
        print(json.dumps(server.storage), flush=True)
        for line in sys.stdin:
            faults = Order(**json.loads(line)).faults()
            before, met = len(met), []

            def counted(method: str, key: str, faults: Faults = faults, met: list[Fault] = met) -> Fault | None:
                found = faults(method, key)
                if found is not None:
                    met.append(found)
                return found

            server.fault = counted
            print(before, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
