"""One example of each command: the end of its `--help`, and its block on docs/reference/commands.md. A test parses each with its command."""

from __future__ import annotations

from typing import Any, Final  # Any: click's commands

import typer

__all__ = ["EXAMPLES", "HELP_NAMES", "add_examples"]

EXAMPLES: Final = {
    "zookeeper": "waltz zookeeper --directory var/zookeeper --listen 127.0.0.1:2181",
    "server": "waltz server --config conf/server.yaml --listen 10.0.0.5:5101",
    "dev": "waltz dev --directory var/dev --partitions 8",
    "access grant": "waltz access grant $COORDINATOR spiffe://waltz/application/orders append,read shop/orders 'shop/returns:0-3'",
    "access revoke": "waltz access revoke $COORDINATOR spiffe://waltz/application/orders append shop/orders",
    "access list": "waltz access list $COORDINATOR",
    "access test": "waltz access test $COORDINATOR spiffe://waltz/application/orders append shop/orders:0",
    "access reset": "waltz access reset $COORDINATOR --yes",
    "certificate create": "waltz certificate create var/certificates node/storage-0 application/orders --host 10.0.0.5",
    "console": "waltz console $CLUSTER --hide 'payments/*'",
    "doctor": "waltz doctor",
    "append": 'waltz append $CLUSTER --topic shop/orders --key order-7 "2 x tea"',
    "read": "waltz read $CLUSTER --topic shop/orders --from-time 15m --format '%T %k %s\\n'",
    "tail": "waltz tail $CLUSTER --topic shop/orders --count 20 --grep refund",
    "trace": "waltz trace $CLUSTER --partition 0 --transaction 42",
    "cluster create": "waltz cluster create $COORDINATOR --name main --partitions 12 --storages storage-0,storage-1,storage-2",
    "cluster grow": "waltz cluster grow $COORDINATOR --partitions 24 --dry-run",
    "cluster adopt": "waltz cluster adopt $COORDINATOR storage-0=var/storage-0 storage-1=storage-1.json --name main --missing storage-2",
    "cluster repair": "waltz cluster repair $COORDINATOR --dry-run",
    "cluster status": "waltz cluster status $COORDINATOR --watch --every 5",
    "cluster replica list": "waltz cluster replica list $COORDINATOR",
    "drain": "waltz drain $COORDINATOR storage-0 --dry-run",
    "rebalance": "waltz rebalance $COORDINATOR --dry-run",
    "config show": "waltz config show server --config conf/server.yaml --changed",
    "selftest": "waltz selftest $COORDINATOR --directory /data/storage-0",
    "bundle": "waltz bundle $COORDINATOR --config conf/server.yaml --log var/log/server.log",
    "explain": "waltz explain OutcomeUnknown",
    "lag": "waltz lag $CLUSTER --checkpoint var/checkpoints/orders --table var/tables/orders --watch",
    "owner move": "waltz owner move $COORDINATOR 3,5-7 10.0.0.5:5101",
    "owner release": "waltz owner release $COORDINATOR all",
    "cluster replica add": "waltz cluster replica add $COORDINATOR 7 storage-3",
    "cluster replica remove": "waltz cluster replica remove $COORDINATOR 7 storage-0",
    "cluster replica replace": "waltz cluster replica replace $COORDINATOR 0-15 storage-0 storage-3",
    "outbox status": "waltz outbox status var/outbox",
    "outbox list": "waltz outbox list var/outbox",
    "outbox retry": """waltz outbox retry var/outbox 17 --arguments '{"seat": "12B", "passenger": "Ada"}'""",
    "outbox drop": "waltz outbox drop var/outbox 17 18",
    "storage": "waltz storage --config conf/storage.yaml --name storage-0 --directory /data/storage-0 --listen 10.0.0.5:5001",
    "storage dump-control-file": "waltz storage dump-control-file var/storage-0 --partition 3",
    "storage dump-segment": "waltz storage dump-segment var/storage-0/3/0000000000000001742.seg --from 1742 --to 1744 --data text",
    "storage verify-segment": "waltz storage verify-segment var/storage-0/3/0000000000000001742.seg",
    "storage verify": "waltz storage verify var/storage-0 --mib-per-s 50",
    "storage segment-statistics": "waltz storage segment-statistics var/storage-0/3",
    "storage copy-partition": "waltz storage copy-partition /mnt/storage-0 var/storage-2 --partition 3",
    "storage correct-times": "waltz storage correct-times var/storage-0 --latest 2026-11-25T14:30:00",
    "storage describe": "waltz storage describe var/storage-1 > storage-1.json",
    "storage migrate": "waltz storage migrate var/java-storage",
    "storage backup": "waltz storage backup var/storage-0 /mnt/backup/storage-0",
    "storage restore": "waltz storage restore /mnt/backup/storage-0 var/storage-0",
    "storage forget": "waltz storage forget $COORDINATOR storage-0 --dry-run",
    "journal print": "waltz journal print var/outbox --safe",
    "journal statistics": "waltz journal statistics var/outbox",
    "journal verify": "waltz journal verify var/outbox",
    "journal export": "waltz journal export var/orders --to orders.jsonl",
    "journal import": "waltz journal import var/orders-new --from orders.jsonl",
    "journal compact": "waltz journal compact var/outbox",
    "journal measure": "waltz journal measure --directory var --seconds 5",
    "topic create": "waltz topic create $CLUSTER shop/orders --partitions 8 --keyed --policy retention_ms=604800000",
    "topic list": "waltz topic list $CLUSTER --output json",
    "topic describe": "waltz topic describe $CLUSTER shop/orders",
    "topic alter-policy": "waltz topic alter-policy $CLUSTER shop/orders --policy durability=quorum_sync",
    "topic delete": "waltz topic delete $CLUSTER shop/orders --dry-run",
    "lock list": "waltz lock list $CLUSTER --partition 0 --lock seat:12A",
    "quota list": "waltz quota list $COORDINATOR",
    "subscriber list": "waltz subscriber list $CLUSTER",
    "subscriber set": "waltz subscriber set $CLUSTER billing --partition 0 --to 15m --dry-run",
    "subscriber remove": "waltz subscriber remove $CLUSTER billing --dry-run",
    "pipeline check": "waltz pipeline check conf/pipelines",
    "pipeline schema": "waltz pipeline schema > pipeline.schema.json",
}


HELP_NAMES: Final = ["-h", "--help"]


def add_examples(app: typer.Typer, name: str = "") -> None:
    """Shows each command's example at the end of its help, which `-h` shows like `--help`."""
    for command in app.registered_commands:
        own = command.name or str(getattr(command.callback, "__name__", "")).replace("_", "-")
        _add(command, f"{name} {own}".strip())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            below = f"{name} {group.name}".strip()
            _add(group, below)
            add_examples(group.typer_instance, below)


def _add(command: Any, name: str) -> None:
    """`command`: what typer keeps of a command or of a group; both have an epilog and settings. Each has the names of its help itself: without the
    context of its group, as for its page, it would keep the usual one."""
    found = command.context_settings
    command.context_settings = {**(found if isinstance(found, dict) else {}), "help_option_names": HELP_NAMES}
    if name in EXAMPLES:
        command.epilog = f"Example: {EXAMPLES[name]}"
