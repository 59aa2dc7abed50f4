"""Every metric of a pipeline as a row of a table, for `docs/guides/pipelines.md`: `python -m tools.pipeline_metrics` prints it, a test
compares."""

from __future__ import annotations

from waltz_delta.pipelines.metrics import METRICS

__all__ = ["metrics_table"]


def metrics_table() -> str:
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{metric.name}` | {metric.kind} | {metric.meaning} |" for metric in METRICS)])


if __name__ == "__main__":
    print(metrics_table())
