"""The links between the hosts of an in-memory network: how long messages need, which direction is cut, what is repeated.

A stream transport loses nothing and changes no order within a connection. Loss becomes delay: a lost packet is sent again later and delays
everything that was sent after it. A cut link holds everything back. An end that waits across it for longer than its patience treats the connection
as broken. Decides nothing itself: the fault injector sets the values, the network reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

__all__ = ["Links", "Weather"]

RESEND_S = 0.2
"""How long a sender waits for an acknowledgment of a packet; it doubles with each loss of the same one."""


@dataclass(slots=True)
class Weather:
    """`loss`: of packets, each of them late then; `duplication`: of calls and first messages, that arrive a second time, up to `duplicate_late_s`
    later; `patience_s`: how long an end waits on a silent connection, at most; `linger`: how often the end of a connection does not reach the other
    end, which detects it by its own patience."""

    delay_s: tuple[float, float] = (0.0, 0.01)
    loss: float = 0.0
    duplication: float = 0.0
    duplicate_late_s: float = 1.0
    patience_s: float = 3.0
    linger: float = 0.0


class Links:
    """Hosts are names; a link leads from one to another and is shut by either's fault injector."""

    def __init__(self, weather: Weather, rng: Random) -> None:
        self.weather = weather
        self.rng = rng
        self.slow: dict[str, float] = {}
        """The current additional delay of messages, by host."""
        self.opened: Callable[[str, str], None] = lambda source, target: None
        """Called when a link is open again."""
        self._shut: dict[tuple[str, str], int] = {}

    def delay_s(self, source: str, target: str) -> float:
        weather, rng = self.weather, self.rng
        delay = rng.uniform(*weather.delay_s)
        if weather.loss:
            again = RESEND_S
            while rng.random() < weather.loss and again < 4 * RESEND_S:
                delay += again
                again *= 2
        if self.slow:
            delay += rng.random() * (self.slow.get(source, 0.0) + self.slow.get(target, 0.0))
        return delay

    def patience_s(self) -> float:
        return self.weather.patience_s * self.rng.uniform(0.3, 1.0)

    def is_shut(self, source: str, target: str) -> bool:
        return bool(self._shut) and (source, target) in self._shut

    def shut(self, source: str, target: str) -> None:
        self._shut[source, target] = self._shut.get((source, target), 0) + 1

    def open(self, source: str, target: str) -> None:
        left = self._shut.get((source, target), 0) - 1
        if left > 0:
            self._shut[source, target] = left
            return
        self._shut.pop((source, target), None)
        self.opened(source, target)
