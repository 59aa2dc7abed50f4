"""The streaming jobs from their arguments to their exit code (`job_outcome` lists the codes)."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_delta.base.job_outcome import run_job
from waltz_delta.jobs.job_arguments import parse_arguments
from waltz_delta.pipelines.pipeline_run import run_pipelines

__all__ = ["ingest", "upsert"]


def ingest(arguments: Sequence[str]) -> int:
    """Appends, or runs pipelines. Returns the exit code."""
    return _run("ingest", arguments, upsert=False)


def upsert(arguments: Sequence[str]) -> int:
    """Merges by key. Returns the exit code."""
    return _run("upsert", arguments, upsert=True)


def _run(name: str, arguments: Sequence[str], *, upsert: bool) -> int:
    def run(given: Sequence[str]) -> int:
        job = parse_arguments(name, given, upsert=upsert)
        return run_pipelines(name, job.pipelines, job.metrics)

    return run_job(name, arguments, run)
