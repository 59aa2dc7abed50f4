"""A hostile client with a certificate of an application and every right except its victim's. Run as `python -m verification.hostile.attacker`, by
`run`.

It reads two lines of JSON from stdin: its certificate and its `Target`. It begins one attack after the other, some at once, until its time is over,
with pauses in which the honest client is alone again. Then it prints one line of JSON: how often each attack was tried, what it achieved (`Outcome`),
its errors, the breaches, and when the turns between the pauses began and ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final

from pydantic import TypeAdapter

from verification.hostile import exhausting, forging, prying
from verification.hostile.target import Hostile, Outcome, Target
from waltz_log.errors import WaltzError
from waltz_log.security.settings import TlsSettings

__all__ = ["ATTACKS"]

Attack = Callable[[Hostile], Awaitable[Outcome]]

ATTACKS: Final[Mapping[str, Attack]] = {
    each.__name__: each
    for each in (
        forging.mount_as_the_victim,
        forging.fence_the_victim,
        forging.resolve_for_the_victim,
        forging.append_wrong_checksums,
        exhausting.ask_for_equal_bounds,
        exhausting.send_many_locks,
        exhausting.leave_feeds_unread,
        exhausting.leave_followers_unread,
        exhausting.send_bombs,
        exhausting.announce_frames,
        exhausting.hold_offers,
        exhausting.hold_handshakes,
        prying.flood_the_audit_log,
        prying.read_foreign_data,
        prying.write_foreign_entries,
        prying.manage_topics,
        prying.write_to_the_coordinator,
    )
}

PAUSE_S: Final = 1.0
"""Between two attacks. The attacker shares two processors with the cluster, and what it computes itself is no harm that a server does."""

TURN_S: Final = 50.0
QUIET_S: Final = 10.0
"""A pause after each turn: how fast the machine is changes within minutes, so each turn is compared with the pause after it."""

AT_ONCE: Final = 2
ATTACK_S_MAX: Final = 60.0
BREACHES_MAX: Final = 100

MISSED_TRIES_MAX: Final = 3
"""Of an attack that reached nothing in all turns, behind them: on a busy machine a node may answer too late for a short run's single try."""


class Attacker:
    def __init__(self, hostile: Hostile) -> None:
        self._hostile = hostile
        self._round: list[str] = []
        """The attacks that are left of this round; each round has all of them, and the last one is completed."""
        self.tried: Counter[str] = Counter()
        self.achieved: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.breaches: list[str] = []
        self.turns: list[tuple[float, float]] = []
        """When each began and ended, by the monotonic clock."""

    async def run(self, seconds: float) -> None:
        end, is_last = time.monotonic() + seconds, False
        while not is_last:
            if self.turns:
                await asyncio.sleep(QUIET_S)
            began = time.monotonic()
            is_last = began + TURN_S + QUIET_S >= end
            await asyncio.gather(*(self._attack(end if is_last else began + TURN_S, is_last=is_last) for _ in range(AT_ONCE)))
            self.turns.append((began, time.monotonic()))
        for _ in range(MISSED_TRIES_MAX):
            for name in ATTACKS:
                if not self.achieved[name]:
                    await self._try(name)

    async def _attack(self, until: float, *, is_last: bool) -> None:
        """`is_last`: completes the round."""
        while time.monotonic() < until or (is_last and self._round):
            if not self._round:
                self._round = list(ATTACKS)
                self._hostile.rng.shuffle(self._round)
                self._round.sort(
                    key=lambda each: ATTACKS[each].__module__ == exhausting.__name__
                )  # popped first, while the honest client still appends
            await self._try(self._round.pop())

    async def _try(self, name: str) -> None:
        self.tried[name] += 1
        try:
            async with asyncio.timeout(ATTACK_S_MAX):
                outcome = await ATTACKS[name](self._hostile)
            self.achieved[name] += outcome.achieved
            self.breaches += outcome.breaches[: BREACHES_MAX - len(self.breaches)]
        except (WaltzError, OSError, TimeoutError) as error:
            self.failed[f"{name}: {type(error).__name__}"] += 1
        await asyncio.sleep(PAUSE_S)


async def _main() -> None:
    tls = TlsSettings.model_validate(json.loads(sys.stdin.readline()))
    target = TypeAdapter(Target).validate_json(sys.stdin.readline())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.nice(19)  # it would run on a machine of its own, and share no processor with the nodes
    hostile = Hostile(target, tls, Random(target.victim))
    await hostile.get_id()
    attacker = Attacker(hostile)
    await attacker.run(target.seconds)
    await hostile.close()
    found = {
        "tried": attacker.tried,
        "achieved": attacker.achieved,
        "failed": attacker.failed,
        "breaches": attacker.breaches,
        "turns": attacker.turns,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(_main())
