"""What all pages share: the connection to the cluster, the samples, and the layout of a page."""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from waltz_log.console.reading.link import ClusterLink
from waltz_log.console.reading.sampling import RARE_FACTOR, Sample, Sampler
from waltz_log.console.reading.transaction_reader import TransactionReader
from waltz_log.console.rendering import make_environment
from waltz_log.console.security import ActionToken, BrowserAccess
from waltz_log.console.settings import ConsoleSettings
from waltz_log.core.ports import Clock
from waltz_log.core.topics.topic_names import TopicName

__all__ = ["Action", "Console", "DataState", "Extension", "Link"]

OLD_SAMPLES = 2
"""A sample older than about this many intervals is said to be old."""

LATE_S = 5.0
"""How much older a sample may be until pages say that the cluster does not answer, although no survey has failed yet: one may hang."""


@dataclass(frozen=True, slots=True)
class DataState:
    """What the console knows of its data. `level`: `ok`, `warn` if it is old or lacks something, `bad` if the cluster does not answer. `age_s`: of
    the newest sample; None if there is none yet. `reason`: of the level; empty if there is none to add."""

    level: str
    age_s: float | None
    reason: str


class Link(NamedTuple):
    """A link in the navigation, or to a panel that is loaded into a page."""

    title: str
    path: str


@dataclass(frozen=True, slots=True)
class Action:
    """A change that a page offers. `question`: the text of the confirmation, whose part before the question mark labels the button; `back`: the
    page to return to. `run` makes the change and returns a description; if its last argument is true, it changes nothing and describes the change."""

    title: str
    question: Callable[[dict[str, str]], str]
    back: Callable[[dict[str, str]], str]
    run: Callable[[Console, dict[str, str], bool], Awaitable[str]]


class Extension(Protocol):
    """Pages of another package."""

    @property
    def links(self) -> Sequence[Link]:
        """For the navigation."""
        ...

    @property
    def templates(self) -> Path: ...

    @property
    def actions(self) -> Mapping[str, Action]:
        """By the last part of their paths."""
        ...

    def routes(self, console: Console) -> list[BaseRoute]: ...

    def transaction_panels(self, partition: int, transaction_id: int) -> Sequence[Link]:
        """Additional panels on the page of a transaction."""
        ...

    async def close(self) -> None: ...


LINKS = (
    Link("Overview", "/"),
    Link("Partitions", "/partitions"),
    Link("Transactions", "/transactions"),
    Link("Conflicts", "/conflicts"),
    Link("Topics", "/topics"),
)
LAST_LINKS = (Link("Nodes", "/nodes"),)


class Console:
    def __init__(self, settings: ConsoleSettings, link: ClusterLink, clock: Clock, extensions: Sequence[Extension], access: BrowserAccess) -> None:
        self.settings = settings
        self.access = access
        self.link = link
        self.clock = clock
        self.sampler = Sampler(link, clock, settings.sample_interval_s)
        self.reader = TransactionReader(link, self.sampler)
        self.token = ActionToken()
        self.extensions = tuple(extensions)
        self.links = (*LINKS, *(each for extension in extensions for each in extension.links), *LAST_LINKS)
        self._environment: Environment = make_environment([extension.templates for extension in extensions])

    def hides(self, sample: Sample, partition: int) -> bool:
        """Whether payloads of this log partition must not be shown to the caller."""
        found = sample.topic_by_partition.get(partition)
        topic = None if found is None else found[0]
        return not self.access.may_read(partition, topic) or (topic is not None and self._is_hidden(str(topic.name)))

    def hides_topic(self, sample: Sample, name: str) -> bool:
        """Whether payloads of any partition of this topic must not be shown to the caller. If the catalogue has no such topic, as after its deletion,
        the rules for its name decide."""
        topic = sample.catalogue.topics.get(TopicName(*name.split("/", 1))) if "/" in name else None
        if self._is_hidden(name):
            return True
        if topic is None:
            return not self.access.may_read_named(name)
        return any(self.hides(sample, partition) for partition in topic.partitions)

    def _is_hidden(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.settings.hidden_topics)

    @property
    def protects_payloads(self) -> bool:
        """Whether the catalogue of topics decides what is shown: then a sample must not be old."""
        return self.access.by_certificate or bool(self.settings.hidden_topics)

    @property
    def _offered(self) -> ConsoleSettings:
        """The settings, without actions if the caller may not act."""
        return self.settings if self.access.may_act() else self.settings.without_actions()

    def state(self) -> DataState:
        age_s, sampler = self.sampler.age_s, self.sampler
        old_s = OLD_SAMPLES * self.settings.sample_interval_s + 2
        late_s = RARE_FACTOR * self.settings.sample_interval_s + LATE_S
        if age_s is None or sampler.error is not None:
            return DataState("bad", age_s, sampler.error or "still connecting")
        if age_s > late_s:
            return DataState("bad", age_s, "the last survey of the cluster has no result yet")
        return DataState("warn" if sampler.warning is not None or age_s > old_s else "ok", age_s, sampler.warning or "")

    def page(self, request: Request, template: str, *, title: str, status: int = 200, **context: object) -> Response:
        """A whole page. `context`: the values that its template needs."""
        shared = {
            "title": title,
            "path": request.url.path,
            "links": self.links,
            "settings": self._offered,
            "viewer": self.access.principal,
            "state": self.state(),
            "now_ms": self.clock.now_ms(),
            "token": self.token.value,
            "cluster_address": self.link.address,
        }
        return HTMLResponse(self._environment.get_template(template).render(shared | context), status)

    def part(self, template: str, status: int = 200, **context: object) -> Response:
        """A part of a page, without the layout."""
        shared = {"settings": self._offered, "state": self.state(), "now_ms": self.clock.now_ms(), "token": self.token.value}
        return HTMLResponse(self._environment.get_template(template).render(shared | context), status)
