"""The pages: pipelines with their lag, tables with their marks and rows, dead letters; and for a transaction the rows that it became.

Files are read in one thread, so that a slow disk delays no other page, and pages name what was not read in time.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from waltz_delta.console.job_metrics import JobMetrics
from waltz_delta.console.replays import Replays
from waltz_delta.console.tables import (
    NO_TABLE,
    Letter,
    LetterPage,
    Rows,
    TableState,
    last_commits,
    letters_of_transaction,
    newest_rows,
    read_state,
    rows_of_key,
    rows_of_transaction,
    waiting_letters,
    withheld,
)
from waltz_delta.marks.traced import table_version
from waltz_delta.pipelines.pipeline import PipelineSettings
from waltz_delta.pipelines.pipeline_file import Problem, check_pipeline_file, pipeline_files
from waltz_delta.settings import DeadLetterSettings
from waltz_log.client.inspection.transaction_trace import TableVersion
from waltz_log.console.console import Action, Console, Link
from waltz_log.console.pages.parameters import number_of, path_number
from waltz_log.console.reading.sampling import Sample
from waltz_log.console.settings import ConsoleSettings
from waltz_log.core.formats.envelope import split_keyed
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, InvalidSetting, WaltzError

__all__ = ["DeltaPages", "make_extension"]

T = TypeVar("T")

READ_TIMEOUT_S = 5.0
COMMITS_SHOWN = 15
THREADS = 2

SUBMIT = ("spark-submit", "--properties-file", "conf/spark-defaults.conf", "jobs/replay_dead_letters.py")
"""Shown where no other command is configured, and to callers who may not run that one."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A pipeline as its file declares it, or what is wrong with the file."""

    file: Path
    settings: PipelineSettings | None
    problems: Sequence[Problem]

    @property
    def name(self) -> str:
        return self.file.stem if self.settings is None else self.settings.name

    @property
    def tables(self) -> list[str]:
        return [] if self.settings is None else [output.target.table for output in self.settings.outputs]

    @property
    def letters(self) -> DeadLetterSettings | None:
        return None if self.settings is None else self.settings.dead_letters


def make_extension(settings: ConsoleSettings) -> DeltaPages | None:
    """None if no pipelines are given. Raises `InvalidSetting` for paths and addresses that cannot be right."""
    metrics = JobMetrics(settings.pipeline_metrics, settings.tls)
    if not settings.pipelines:
        return None
    paths = [Path(each) for each in settings.pipelines]
    for path in paths:
        if not path.exists():
            raise InvalidSetting(name="pipelines", reason=f"{path} does not exist", nearest=None)
    declared = [Declared(file, *check_pipeline_file(file)) for file in pipeline_files(paths)]
    return DeltaPages(declared, metrics, _replay_command(settings.replay_command))


def _replay_command(command: str | None) -> Sequence[str]:
    """Its words; none if there is no command. Raises `InvalidSetting`."""
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise InvalidSetting(name="replay_command", reason=f"cannot be split into words: {error}", nearest=None) from None
    if command is not None and not words:
        raise InvalidSetting(name="replay_command", reason="is empty", nearest=None)
    return words


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table on a page. `lag`: committed transactions that it does not hold, None if it is not known."""

    number: int
    state: TableState
    mode: str
    lag: int | None
    partitions: Sequence[tuple[int, int | None, int | None]]

    @property
    def name(self) -> str:
        """The end of the path."""
        return Path(self.state.path).name


class DeltaPages:
    links = (Link("Pipelines", "/pipelines"), Link("Tables", "/tables"))
    templates = Path(__file__).parent / "templates"

    def __init__(self, declared: Sequence[Declared], metrics: JobMetrics, replay_command: Sequence[str] = ()) -> None:
        """`replay_command`: what replays dead letters if an action asks for it; empty to offer no replay."""
        self._declared = declared
        self._replay_command = replay_command
        self._replays = Replays(replay_command)
        self._metrics = metrics
        self._targets = [(each, output.target) for each in declared if each.settings is not None for output in each.settings.outputs]
        self._threads = ThreadPoolExecutor(THREADS, "console tables")

    @property
    def actions(self) -> Mapping[str, Action]:
        replay = Action(
            "Replay dead letters",
            lambda values: f"Replay the dead letters of {values.get('pipeline', '')}? The job reads the pipeline's file as it is now.",
            lambda values: f"/pipelines/{values.get('pipeline', '')}/dead-letters",
            self._replay,
        )
        return {"replay-dead-letters": replay} if self._replay_command else {}

    async def close(self) -> None:
        await self._replays.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def transaction_panels(self, partition: int, transaction_id: int) -> Sequence[Link]:
        return [Link("Tables", f"/transactions/{partition}/{transaction_id}/tables")] if self._targets else []

    def routes(self, console: Console) -> list[BaseRoute]:
        async def pipelines(request: Request) -> Response:
            return await self._show_pipelines(console, request)

        async def letters(request: Request) -> Response:
            return await self._show_letters(console, request)

        async def tables(request: Request) -> Response:
            sample = await console.sampler.sample()
            rows = await asyncio.gather(*(self._table(console, sample, number) for number in range(len(self._targets))))
            return console.page(request, "tables.html", title="Tables", rows=rows)

        async def table(request: Request) -> Response:
            return await self._show_table(console, request)

        async def panel(request: Request) -> Response:
            return await self._show_panel(console, request)

        return [
            Route("/pipelines", pipelines),
            Route("/pipelines/{name}/dead-letters", letters),
            Route("/tables", tables),
            Route("/tables/{number:int}", table),
            Route("/transactions/{partition:int}/{transaction_id:int}/tables", panel),
        ]

    # ---- reads ---------------------------------------------------------------------------------------------------------------------------------

    async def _read(self, call: Callable[..., T], *arguments: object) -> T | str:
        """In a thread. Text: why there is nothing."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        except TimeoutError:
            return f"not read within {READ_TIMEOUT_S:g} s"
        except Exception as error:  # deltalake raises many kinds for what is missing or damaged
            return str(error).splitlines()[0] if str(error) else type(error).__name__

    async def _table(self, console: Console, sample: Sample, number: int) -> TableRow:
        declared, target = self._targets[number]
        found = await self._read(read_state, target.table, sample.survey.key)
        state = TableState(target.table, None, {}, found) if isinstance(found, str) else found
        rows = []
        for partition in sorted({*self._partitions(sample, declared), *state.marks}):
            rows.append((partition, state.marks.get(partition), console.sampler.history.mark(partition)))
        known = [max(0, high - (-1 if mark is None else mark)) for _, mark, high in rows if high is not None]
        lag = sum(known) if known and state.problem in (None, NO_TABLE) else None  # of a table that cannot be read, nothing is known
        return TableRow(number, state, target.mode, lag, rows)

    def _partitions(self, sample: Sample, declared: Declared) -> Sequence[int]:
        """The log partitions that a pipeline reads; none if its source names no topic that exists."""
        assert declared.settings is not None
        source = declared.settings.source
        if "topic" not in source:
            return range(len(sample.survey.partitions)) if "partitions" not in source else ()
        try:
            return sample.catalogue.find(TopicName.parse(source["topic"])).partitions
        except WaltzError:
            return ()

    def _shown_command(self, console: Console) -> Sequence[str]:
        """The configured one only for callers who may run it: it may contain secrets."""
        return self._replay_command if self._replay_command and console.access.may_act() else SUBMIT

    def _hides(self, console: Console, sample: Sample, declared: Declared, partition: int) -> bool:
        """Whether rows that the pipeline made from the partition must not be shown to the caller: by the partition's topic as it is now, and by the
        topic that the pipeline's file names, which may be deleted, and its partitions part of another one."""
        assert declared.settings is not None
        topic = declared.settings.source.get("topic")
        return console.hides(sample, partition) or (topic is not None and console.hides_topic(sample, str(topic)))

    def _hides_any(self, console: Console, sample: Sample, declared: Declared, partitions: Iterable[int] = ()) -> bool:
        """Whether a payload is hidden in all that the pipeline reads, and these partitions. If no partition is known, the caller must be one who may
        see every payload."""
        assert declared.settings is not None
        source, known = declared.settings.source, {*self._partitions(sample, declared), *partitions}
        if "topic" not in source and not known:
            known = set(range(len(sample.survey.partitions)))
        return any(self._hides(console, sample, declared, partition) for partition in known) or (
            "topic" in source and console.hides_topic(sample, str(source["topic"]))
        )

    # ---- pages ---------------------------------------------------------------------------------------------------------------------------------

    async def _show_pipelines(self, console: Console, request: Request) -> Response:
        sample = await console.sampler.sample()
        found = await asyncio.gather(*(self._table(console, sample, number) for number in range(len(self._targets))))
        metrics = await self._read(self._metrics.read)
        figures, problems = ({}, [metrics]) if isinstance(metrics, str) else metrics
        rows = []
        for each in self._declared:
            tables = [row for row, (declared, _) in zip(found, self._targets, strict=True) if declared is each]
            letters = None if each.letters is None else await self._read(waiting_letters, each.letters)
            rows.append(
                {
                    "declared": each,
                    "tables": tables,
                    "figures": figures.get(each.name, {}),
                    "phases": _phases(figures.get(each.name, {})),
                    "letters": letters.count if isinstance(letters, LetterPage) else None,
                }
            )
        return console.page(request, "pipelines.html", title="Pipelines", rows=rows, metrics=bool(self._metrics.addresses), problems=problems)

    async def _show_letters(self, console: Console, request: Request) -> Response:
        sample = await console.sampler.sample()
        each, letters = self._with_letters(request.path_params["name"])
        hides = partial(self._hides, console, sample, each)
        found = await self._read(waiting_letters, letters, max(0, number_of(request.query_params, "page") or 0))
        if not isinstance(found, str):  # a reason quotes the value that does not decode
            found = replace(found, rows=withheld(found.rows, ("reason", "data"), hides))
        replay = self._replays.last(each.name)
        return console.page(
            request,
            "dead_letters.html",
            title="Dead letters",
            declared=each,
            found=found,
            command=shlex.join([*self._shown_command(console), "--pipeline", str(each.file)]),
            offered=console.settings.allow_actions and bool(self._replay_command),
            replay=replay,
            output_hidden=replay is not None and self._hides_any(console, sample, each),  # it may quote payloads
        )

    async def _replay(self, console: Console, values: dict[str, str], dry_run: bool) -> str:
        each, letters = self._with_letters(values.get("pipeline", ""))
        found = await self._read(waiting_letters, letters)
        if isinstance(found, str):
            raise InvalidRequest(reason=f"the dead letters cannot be read: {found}")
        what = f"{found.count} dead letters of {each.name}, as far as they decode now"
        if dry_run:
            self._replays.expect_idle(each.name)
            return what
        replay = await self._replays.start(each.name, str(each.file), console.clock.now_ms())
        return f"{what}, in process {replay.process.pid}"

    def _with_letters(self, name: str) -> tuple[Declared, DeadLetterSettings]:
        """The pipeline with that name, and its dead letters. Raises `InvalidRequest`."""
        each = next((one for one in self._declared if one.name == name), None)
        if each is None or each.letters is None:
            raise InvalidRequest(reason="there is no such pipeline with dead letters")
        return each, each.letters

    async def _show_table(self, console: Console, request: Request) -> Response:
        sample = await console.sampler.sample()
        number = path_number(request, "number")
        if number >= len(self._targets):
            raise InvalidRequest(reason="there is no such table")
        row = await self._table(console, sample, number)
        hidden = self._hides_any(console, sample, self._targets[number][0], (partition for partition, _, _ in row.partitions))
        commits, rows = await asyncio.gather(
            self._read(last_commits, row.state.path, COMMITS_SHOWN),
            self._read(newest_rows, row.state.path, self._targets[number][1].keys, row.state.marks),
        )
        return console.page(
            request,
            "table.html",
            title=Path(row.state.path).name,
            row=row,
            commits=commits,
            rows="the payloads of its topic are hidden" if hidden else rows,
            no_table=NO_TABLE,
            pipeline=self._targets[number][0].name,
        )

    async def _show_panel(self, console: Console, request: Request) -> Response:
        """The versions and rows of the tables that hold a transaction."""
        sample = await console.sampler.sample()
        partition, transaction_id = path_number(request, "partition"), path_number(request, "transaction_id")
        entry = await console.reader.one(sample, partition, transaction_id)
        topic = sample.topic_by_partition.get(partition)
        keyed = split_keyed(entry.data or b"") if topic is not None and topic[0].keyed else None
        data = (entry.data or b"") if keyed is None else keyed.value
        found = []
        for number, (declared, target) in enumerate(self._targets):
            if partition not in self._partitions(sample, declared):
                continue
            version: TableVersion | str = await self._read(table_version, target.table, partition, transaction_id, sample.survey.key)
            rows: Rows | str | None = None
            exact = True
            hides = self._hides(console, sample, declared, partition)
            letter = await self._letter(sample, declared, target.table, (partition, transaction_id))
            if isinstance(version, TableVersion) and version.version is not None and not hides:
                rows = await self._read(rows_of_transaction, target.table, target.keys, partition, transaction_id)
                if rows is None:
                    exact, rows = False, await self._read(rows_of_key, target.table, target.keys, data)
            place = {"number": number, "name": Path(target.table).name, "pipeline": declared.name}
            found.append(place | {"version": version, "rows": rows, "exact": exact, "letter": letter, "reason_hidden": hides})
        return console.part("transaction_tables.html", found=found, hidden=console.hides(sample, partition))

    async def _letter(self, sample: Sample, declared: Declared, table: str, place: tuple[int, int]) -> Letter | str | None:
        """The transaction as a dead letter of a table, which also one is that no route accepts. Text: why it is not known."""
        if declared.letters is None:
            return None
        letters = await self._read(letters_of_transaction, declared.letters, sample.survey.key, *place)
        if isinstance(letters, str):
            return letters
        return next((each for each in letters if each.target.rstrip("/") in ("", table.rstrip("/"))), None)


def _phases(figures: dict[str, float]) -> list[tuple[str, float, float]]:
    """Name, seconds and share of the longest, the longest first."""
    start = "phase_seconds "
    found = sorted(((value, name.removeprefix(start)) for name, value in figures.items() if name.startswith(start)), reverse=True)
    top = found[0][0] if found and found[0][0] > 0 else 1.0
    return [(name, value, value / top) for value, name in found]
