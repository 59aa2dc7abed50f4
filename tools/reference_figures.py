"""The tables of measured figures in the docs. `make reference` writes them from `benchmarks/published.json`; no figure is written by hand.

A table is between `<!-- figures: NAME -->` and `<!-- end -->`, below the command that measures it; a single figure within a sentence is between
`<!-- figure: NAME -->` and `<!-- end -->`. `python -m tools.reference_figures FILE ...`
copies the figures of measured runs (`benchmarks/latest.json`) into the published ones; quick runs, and those without commit, date and processor, are
refused.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "benchmarks" / "published.json"
PAGES = tuple(ROOT / "docs" / name for name in ("reference/performance.md", "reference/cost_model.md", "guides/sizing.md", "guides/workers.md"))
INLINE_PAGES = tuple(ROOT / "docs" / name for name in ("guides/monitoring.md", "guides/topics.md", "internals/storage.md"))
"""Pages with single figures within their sentences."""
INLINE = re.compile(r"(<!-- figure: ([\w.]+) -->).*?(<!-- end -->)")
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

HELD = 0.97
"""If less than this share of a rate was reached, the latency has no meaning, because the queue kept growing. As in
`benchmarks/scaling/cost_runs.py`."""

NOT_PUBLISHED = "No run is published yet. The command above measures it on your machine.\n"

Figures = Mapping[str, Mapping[str, Any]]


def read(path: Path = PUBLISHED) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads(path.read_text())}


def page(path: Path, figures: Figures | None = None) -> str:
    """The page with its tables rewritten from the published figures."""
    known = read() if figures is None else figures
    text = INLINE.sub(lambda found: f"{found[1]}{_short(known[found[2]]['value'])} {known[found[2]]['unit']}{found[3]}", path.read_text())
    return BLOCK.sub(lambda found: f"{found[1]}{_filled(found[2], known)}{found[3]}", text)


def _filled(name: str, figures: Figures) -> str:
    names, table = TABLES[name]
    return table(figures) if any(each in figures for each in names) else NOT_PUBLISHED


def _rows(*rows: tuple[str, ...]) -> str:
    head, *rest = rows
    lines = [head, tuple("---" for _ in head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _short(value: float) -> str:
    """Three digits, or a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _compared(rows: Mapping[str, str], unit: str, figures: Figures) -> str:
    found = [
        (
            label + _kafka_settings(figures[name]["conditions"]),
            figures[name]["conditions"]["platform"],
            f"{figures[name]['ratio']:.2f} ({figures[name]['conditions']['ratios']})",
            "<br>".join(f"{peer} {value}" for peer, value in figures[name]["conditions"]["peers"].items())
            + "".join(
                f"<br>{peer}: did not hold the rate, {value} in the last round of warm-up"
                for peer, value in figures[name]["conditions"].get("could_not_hold", {}).items()
            ),
        )
        for name, label in rows.items()
        if name in figures
    ]
    promises = {own["kafka_durability"]: own["platform_durability"] for name in rows if "kafka_durability" in (own := _own(name, figures))}
    table = _rows(("load", f"platform, {unit}", "ratio to the best peer", f"peers, {unit}"), *found)
    return table + "".join(f"\nThe platform answers after {mine}.\nKafka: {kafka}.\n" for kafka, mine in promises.items())


def _own(name: str, figures: Figures) -> Mapping[str, Any]:
    found: Mapping[str, Any] = figures[name]["conditions"] if name in figures else {}
    return found


def _kafka_settings(own: Mapping[str, Any]) -> str:
    """What both sides have in flight, and the settings that were the best for Kafka; runs before these were recorded have none."""
    if "bytes_in_flight" not in own:
        return ""
    settings = ", ".join(f"`{name}={value}`" for name, value in own["kafka"].items() if name != "acks")
    return f"<br>{own['bytes_in_flight'] / 1e6:.1f} MB in flight; Kafka: {settings}"


def _values(rows: Mapping[str, str], figures: Figures) -> str:
    found = []
    for name, label in rows.items():
        if name in figures:
            each = figures[name]
            spread = each["conditions"].get("ratios")
            ratio = f"{each['ratio']:.2f}{f' ({spread})' if spread else ''} of {each['ratio_to']}" if "ratio" in each else ""
            found.append((label, f"{_number(each['value'])} {each['unit']}", ratio))
    return _rows(("figure", "value", "compared in the same run"), *found)


def _costs(figures: Figures) -> str:
    rows = []
    for what in ("client", "server", "storage", "network", "disk"):
        each = figures.get(f"costs.{what}")
        if each is not None:
            own = each["conditions"]
            parts = [_short(own[part]) if part in own else "not measured" for part in ("per_transaction", "per_block", "per_large_block", "per_kib")]
            rows.append((what, each["unit"].partition("/")[0], *parts, f"{_number(each['value'])}", f"{own['within']:.0%}"))
    head = (
        "cost of",
        "unit",
        "per transaction",
        "per write round",
        "more per large write round",
        "per KiB of payload",
        "200 B, 16,000 in flight",
        "largest error of a check run",
    )
    return _rows(head, *rows) + _missed({row[0]: float(row[-1].rstrip("%")) / 100 for row in rows}, figures)


def _missed(errors: Mapping[str, float], figures: Figures) -> str:
    """A sentence if a run was further from the model than the command allows."""
    allowed = float(figures["costs.within"]["conditions"]["allowed"])
    names = [name for name, error in errors.items() if error > allowed]
    return f"\n**Not within {allowed:.0%} in this run: {', '.join(names)}.**\n" if names else ""


def _runs(figures: Figures) -> str:
    names = [key.removeprefix("measured, ") for key in figures["costs.server"]["conditions"] if key.startswith("measured, ")]
    roles = ("client", "server", "storage", "network", "disk")
    rows = []
    for name in names:
        cells = []
        for role in roles:
            own = figures[f"costs.{role}"]["conditions"]
            cells.append(f"{_short(float(own[f'measured, {name}'].partition(' of ')[0]))} ({own['errors'][name]})")
        block = figures["costs.server"]["conditions"][f"measured, {name}"].partition(" of ")[2].removesuffix(" a block")
        rows.append((name, block, *cells))
    return _rows(("run", "transactions per write round", *roles), *rows)


def _roles(figures: Figures) -> str:
    rows = []
    for name in ("16,000 in flight", "512 in flight", "32 in flight", "1 in flight"):
        spent = [figures[f"costs.{role}"]["conditions"][f"measured, {name}"].partition(" of ")[0] for role in ("server", "storage", "client")]
        rows.append((name.partition(" ")[0], *(f"{_short(float(each))} µs" for each in spent)))
    return _rows(("Appends in flight", "log server", "three storage nodes together", "client"), *rows)


def _plans(figures: Figures) -> str:
    rows = []
    for name, rate in (("costs.nodes_1m", "1 million"), ("costs.nodes_10m", "10 million")):
        if name in figures:
            own = figures[name]["conditions"]
            rows.append((rate, _number(own["servers"]), _number(own["storages"]), f"{math.ceil(own['clients'])}", own["bottleneck"]))
    return _rows(("transactions per second", "log servers", "storage nodes", "cores of clients", "what needs the most nodes"), *rows)


def _queueing(figures: Figures) -> str:
    rows = []
    for rate in ("20k", "50k", "100k"):
        cells = []
        for quantile in ("p50", "p99"):
            each = figures[f"queueing.{quantile}_ms_at_{rate}"]
            measured_ms, spread = each["conditions"]["measured_ms"], each["conditions"]["errors"]
            cells += [_short(float(measured_ms)), _short(float(each["value"])), f"{float(each['ratio']) - 1:+.0%} ({spread})"]
        held = float(figures[f"queueing.p50_ms_at_{rate}"]["conditions"].get("held", 1.0))
        rows.append((rate.replace("k", ",000") + (f" ({held:.0%} reached)" if held <= HELD else ""), *cells))
    head = ("transactions per second", *(f"{quantile} {cell}" for quantile in ("p50", "p99") for cell in ("measured, ms", "simulated, ms", "error")))
    errors = {name: abs(float(figures[name]["ratio"]) - 1) for name in QUEUEING if float(figures[name]["conditions"].get("held", 1.0)) > HELD}
    allowed = float(figures[QUEUEING[0]]["conditions"]["allowed"])
    missed = sum(error > allowed for error in errors.values())
    below = f"\n**{missed} of {len(errors)} are not within {allowed:.0%} in this run.**\n" if missed else ""
    return _rows(head, *rows) + below + _single_rounds(figures)


def _single_rounds(figures: Figures) -> str:
    """How far the simulation of one round was from its measurement."""
    percents = {name: [int(each) for each in re.findall(r"[+-]?\d+", str(figures[name]["conditions"]["errors"]))] for name in QUEUEING}
    low, high = min(min(each) for each in percents.values()), max(max(each) for each in percents.values())
    rounds = figures[QUEUEING[0]]["conditions"]["rounds"]
    return f"\n**Single rounds were off by {low:+d} % to {high:+d} %.** Only the medians over {rounds} rounds are predictions.\n"


def _origin(own: Mapping[str, Any]) -> str:
    """Figures that were measured before runs recorded their commit have the commit that published them."""
    if "commit" in own:
        return f"Commit {own['commit']} of {own['date']}, processor {own['processor']}."
    return f"Published by commit {own['published_commit']} of {own['published_date']}, processor not recorded."


def _conditions(name: str, figures: Figures) -> str:
    """A sentence below a table that describes the machine of the measurement."""
    own = figures[name]["conditions"]
    parts = [f"{own['cores']} cores", f"Python {own['python']}"]
    parts += [f"{own['rounds']} rounds after {own['warm_rounds']} that warm up"] if "warm_rounds" in own else []
    parts += [f"load average {own['load_at_start']} at the start"]
    parts += [f"{own['others_processors']} processors used by other programs meanwhile"] if "others_processors" in own else []
    return f"\nMeasured on {', '.join(parts)}.\n{_origin(own)}\n"


def _first(names: Mapping[str, str], figures: Figures) -> str:
    return next(name for name in names if name in figures)


def _with_conditions(table: Callable[[Figures], str], names: Mapping[str, str], figures: Figures) -> str:
    return table(figures) + _conditions(_first(names, figures), figures)


THROUGHPUT = {
    "kafka.append": "one by one, a write lock each",
    "kafka.append_default": "the same, Kafka's default batching",
    "kafka.bulk": "in bulk, no locks",
    "kafka.bulk_locks": "in bulk, a write lock each",
    "kafka.bulk_lz4": "in bulk, no locks, Kafka with lz4",
    "kafka.bulk_unsynced": "in bulk, no locks, Kafka as most run it: without `flush.messages`",
}
WORKERS = {
    **{f"workers.server_us_{number}": f"log server with {number} workers, the busiest one" for number in (1, 2, 4)},
    **{f"workers.storage_us_{number}": f"storage node with {number} workers, the busiest one" for number in (1, 2, 4)},
    "workers.append": "rate with two workers to that with one, on two cores",
}
OFFERED = {f"kafka.{quantile}_ms_at_{rate}k": f"{quantile} at {rate},000 per second" for rate in (20, 50, 100) for quantile in ("p50", "p99")}
SINGLE = {"kafka.single_p50_ms": "p50, one in flight", "kafka.single_p99_ms": "p99, one in flight"}
SIZES = {
    "kafka.append_1p_64b": "1 partition, 64 B",
    "kafka.append_1p_1024b": "1 partition, 1 KiB",
    "kafka.append_1p_10240b": "1 partition, 10 KiB",
    "kafka.append_1p_102400b": "1 partition, 100 KiB",
    "kafka.append_4p_200b": "4 partitions, 200 B",
    "kafka.append_16p_200b": "16 partitions, 200 B",
}
CALLERS = {1: "1 caller", 16: "16 callers", 64: "64 callers"}
UMADB = {f"umadb.append_{number}": label for number, label in CALLERS.items()}
UMADB_LATENCY = {f"umadb.{quantile}_ms_{number}": f"{quantile}, {label}" for number, label in CALLERS.items() for quantile in ("p50", "p99")}
APPEND = {
    "append.single_p50_ms": "one in flight, p50",
    "append.single_p99_ms": "one in flight, p99",
    "append.pipelined": "16,000 in flight",
    "append.pipelined_1000": "1,000 in flight",
    "append.pipelined_4p": "16,000 in flight, 4 partitions",
    "append.bulk": "in bulk, no locks",
    "append.bulk_locks": "in bulk, a write lock each",
    "append.p99_ms_at_20k": "p99 at 20,000 per second",
    "append.p99_ms_at_50k": "p99 at 50,000 per second",
    "append.p99_ms_at_100k": "p99 at 100,000 per second",
    "append.hot_locks_executions": "executions per transaction with hot locks (1: none repeated)",
    "append.single_of_bare": "p50 of one in flight, to that of the bare transport",
    "append.single_p99_of_bare": "p99 of one in flight, to that of the bare transport",
    "append.pipelined_of_bare": "rate of 16,000 in flight, to that of the bare transport",
}
SPARK = {
    "spark.noop": "rows read from the log and discarded",
    "spark.small_trigger_ms": "a trigger that finds one transaction",
    "delta.append": "rows appended to a Delta table",
    "delta.merge": "rows merged into a Delta table",
}
JSON_TABLES = {
    "delta.append_json": "rows of 14 JSON columns appended to a Delta table",
    "delta.merge_json": "250,000 such rows merged into a million",
    "decode.json": "JSON of 14 columns decoded by one core",
    "decode.json_spark": "the same by the tasks of a pipeline, read from a log",
    "decode.json_100": "JSON of 100 columns by these tasks",
    "lake.s3_visible_p50_s": "from an append to its row in a table on S3, p50, one trigger a second",
    "lake.s3_visible_p95_s": "the same, p95",
    "lake.commit_ms_10k_files": "a commit to a table of 10,000 files",
    "demo.lag_p95_s": "how far the tables of `make demo` are behind the log, p95",
}
JOURNAL = {f"journal.callers_{number}": label for number, label in CALLERS.items()}
SCALE = {
    "scale.server_mb": "memory of the log server",
    "scale.storage_mb": "memory of a storage node",
    "scale.server_idle": "processor of the log server, idle",
    "scale.storage_idle": "processor of a storage node, idle",
    "scale.server_at_20k": "processor of the log server, 20,000 per second",
    "scale.storage_at_20k": "processor of a storage node, 20,000 per second",
    "scale.mount_s": "200 clients mount 1,000 partitions",
    "scale.open_s": "a new cluster opens 1,000 partitions",
    "scale.handover_s": "handover of half of them to the other log server",
    "scale.failover_s": "fail-over of all of them to it, with 15 s of session timeout",
}

BOOTSTRAP = {
    f"bootstrap.{kind}{name}": f"{label}{ending}"
    for kind, ending in (("", ""), ("tls_", ", mutual TLS"))
    for name, label in (
        ("connect_ms", "a client connects, p50"),
        ("follower_kib", "memory of the server for each client that follows"),
        ("change_spread_s", "from the first to the last client that learns of a change"),
    )
}
FAILOVER = {
    "failover.kill_s": "the server was killed: until the append is committed",
    "failover.term_s": "the server ended in order: until the append is committed",
    "failover.storage_gap_ms": "a storage node is killed: longest gap between answers",
}

COSTS = tuple(f"costs.{what}" for what in ("client", "server", "storage", "network", "disk"))
QUEUEING = tuple(f"queueing.{quantile}_ms_at_{rate}k" for rate in (20, 50, 100) for quantile in ("p50", "p99"))


def _table(names: Mapping[str, str], table: Callable[[Figures], str]) -> tuple[tuple[str, ...], Callable[[Figures], str]]:
    return tuple(names), partial(_with_conditions, table, names)


TABLES: dict[str, tuple[tuple[str, ...], Callable[[Figures], str]]] = {
    "throughput": _table(THROUGHPUT, partial(_compared, THROUGHPUT, "txn/s")),
    "offered": _table(OFFERED, partial(_compared, OFFERED, "ms")),
    "single": _table(SINGLE, partial(_compared, SINGLE, "ms")),
    "sizes": _table(SIZES, partial(_compared, SIZES, "txn/s")),
    "umadb": _table(UMADB, partial(_compared, UMADB, "txn/s")),
    "umadb_latency": _table(UMADB_LATENCY, partial(_compared, UMADB_LATENCY, "ms")),
    "append": _table(APPEND, partial(_values, APPEND)),
    "spark": _table(SPARK, partial(_values, SPARK)),
    "tables": _table(JSON_TABLES, partial(_values, JSON_TABLES)),
    "journal": _table(JOURNAL, partial(_values, JOURNAL)),
    "scale": _table(SCALE, partial(_values, SCALE)),
    "bootstrap": _table(BOOTSTRAP, partial(_values, BOOTSTRAP)),
    "failover": _table(FAILOVER, partial(_values, FAILOVER)),
    "costs": _table({"costs.server": ""}, _costs),
    "runs": (COSTS, _runs),
    "roles": (COSTS, _roles),
    "workers": _table(WORKERS, partial(_values, WORKERS)),
    "plans": (("costs.nodes_1m",), _plans),
    "queueing": (QUEUEING, _queueing),
}
"""The figures of which a table needs one, and the function that writes the table."""


def publish(paths: list[Path]) -> None:
    known = read() if PUBLISHED.exists() else {}
    for path in paths:
        for name, each in read(path).items():
            if "quick" in each["conditions"]:
                raise SystemExit(f"{name} of {path} is of a quick run; measure it whole")
            if lacking := [key for key in ("commit", "date", "processor") if not each["conditions"].get(key)]:
                raise SystemExit(f"{name} of {path} has no {', '.join(lacking)}; measure it again")
            if each["conditions"]["commit"].endswith(("+", "unknown")):
                raise SystemExit(f"{name} of {path} was measured with files that no commit has; commit them and measure it again")
            known[name] = each
    lines = ",\n".join(json.dumps(each) for _, each in sorted(known.items()))
    PUBLISHED.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    publish([Path(each) for each in sys.argv[1:]])
