"""`waltz quota list`: the rules that each log server applies, as its settings have them, and how often they refused a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from waltz_log.cli.connecting import connected
from waltz_log.cli.printing import print_data, print_line, print_table
from waltz_log.coordination.survey import ServerState, survey
from waltz_log.exit_codes import FAILED, OK

__all__ = ["listing", "show"]


async def listing(address: str, *, output: str, timeout_s: float) -> int:
    """Exit code 1 if a server does not answer: its quotas are not known."""
    async with connected(address, timeout_s) as (coordinator, network):
        found = await survey(coordinator, network, address)
    show(found.servers, output)
    return OK if all(each.answers for each in found.servers) else FAILED


def show(servers: Sequence[ServerState], output: str) -> None:
    facts = [
        {
            "server": each.server_id,
            "answers": each.answers,
            "quotas": [asdict(rule) for rule in each.statistics.quotas],
            "append_refusals": 0 if each.statistics.totals is None else each.statistics.totals.append_refusals,
            "mount_refusals": 0 if each.statistics.totals is None else each.statistics.totals.mount_refusals,
        }
        for each in servers
    ]
    if output != "table":
        print_data(facts, output)
        return
    columns = ("server", "principal", "topic", "transactions/s", "bytes/s", "mounts/s", "burst")
    rows = [
        (
            each.server_id,
            rule.principal or "each",
            rule.topic or "each",
            _number(rule.transactions_per_s),
            _number(rule.bytes_per_s),
            _number(rule.mounts_per_s),
            f"{rule.burst_s:g} s",
        )
        for each in servers
        for rule in each.statistics.quotas
    ]
    print_table(columns, rows)
    for fact in facts:
        refused = f"refused {fact['append_refusals']:,} frames of appends and {fact['mount_refusals']:,} mounts since it started"
        print_line(f"server {fact['server']} " + (refused if fact["answers"] else "does not answer"))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.12g}"
