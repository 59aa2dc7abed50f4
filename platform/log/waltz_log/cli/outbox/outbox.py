"""`waltz outbox status|list|retry|drop`: inspects the directory of an outbox and decides about its dead letters.

`status` works while the service runs: it reads the statistics file that the service writes. The others work on a directory that no service has
open: `list` changes nothing there; `retry` and `drop` open it as an outbox.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from waltz_log.cli.printing import print_data, print_line, print_result, print_table
from waltz_log.client import DeadLetter, Intent, OutboxStatistics
from waltz_log.errors import InvalidRequest
from waltz_log.exit_codes import FAILED, OK
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk
from waltz_log.outbox.offline import OutboxDirectory
from waltz_log.outbox.store import read_statistics
from waltz_log.processes.clock import WallClock
from waltz_log.statistics import to_json

__all__ = ["drop", "listing", "retry", "status"]

DATA_SHOWN_BYTES = 60


def _writable(directory: Path) -> FileSystemDisk:
    _require_directory(directory)
    return FileSystemDisk(directory)


def _read_only(directory: Path) -> ReadOnlyFileSystemDisk:
    _require_directory(directory)
    return ReadOnlyFileSystemDisk(directory)


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise InvalidRequest(reason=f"no such directory: {directory}")


def _running(disk: FileSystemDisk) -> bool:
    try:
        disk.lock()
    except OSError:
        return True
    disk.unlock()
    return False


def status(directory: Path, *, output: str) -> int:
    """Exit code 1 if there are dead letters or the service reports an error, which an operator should inspect."""
    disk = _read_only(directory)
    now_ms = WallClock().now_ms()
    if _running(disk):
        found = read_statistics(disk)
        if found is None:
            raise InvalidRequest(reason=f"a process holds {directory}, but no outbox has written its statistics there yet")
        fields: dict[str, object] = {"running": True, **to_json(found)}
    else:
        with OutboxDirectory.read_only(disk, now_ms) as outbox:
            pending = outbox.pending()
            oldest_s = max(0.0, (now_ms - pending[0].submitted_ms) / 1000) if pending else 0.0
            stopped = OutboxStatistics(
                at_ms=now_ms,
                process_id=os.getpid(),
                client_id=outbox.client_id,
                epoch=outbox.epoch,
                connected=False,
                depth=len(pending),
                size_bytes=outbox.size_bytes,
                oldest_age_s=oldest_s,
                in_doubt=sum(entry.attempt is not None for entry in pending),
                dead=len(outbox.dead_letters()),
                submitted=0,
                forwarded=0,
                forward_rate=0.0,
                error="",
            )
        fields = {
            "running": False,
            **{name: value for name, value in to_json(stopped).items() if name not in ("process_id", "submitted", "forwarded")},
        }
    if output != "table":
        print_data(fields, output)
    else:
        for name, value in fields.items():
            print_line(f"{name.replace('_', ' '):<14} {'-' if value in (None, '') else value}")
    return FAILED if fields["dead"] or fields["error"] else OK


def listing(directory: Path, *, pending: bool, output: str) -> int:
    with OutboxDirectory.read_only(_read_only(directory), WallClock().now_ms()) as outbox:
        if pending:
            rows = [
                {
                    "id": entry.entry_id,
                    "state": "in doubt" if entry.attempt is not None else "waiting",
                    "tries": entry.tries,
                    "at_ms": entry.submitted_ms,
                    "reason": "",
                    **_intent(entry.intent),
                }
                for entry in outbox.pending()
            ]
        else:
            rows = [_dead(dead) for dead in outbox.dead_letters()]
    if output != "table":
        print_data(rows, output)
    else:
        _show(rows)
    return OK


def _dead(dead: DeadLetter) -> dict[str, object]:
    fields: dict[str, object] = {"id": dead.dead_id, "state": "dead", "tries": dead.tries, "at_ms": dead.at_ms, "reason": dead.reason}
    return fields | (_intent(dead.intent) if dead.intent is not None else {"unreadable": dead.body.hex()})


def _intent(intent: Intent) -> dict[str, object]:
    fields: dict[str, object] = {"partition": intent.partition, "key": intent.key}
    if intent.handler:
        return fields | {"handler": intent.handler, "arguments": intent.arguments}
    try:
        return fields | {"header": intent.header, "data": intent.payload.decode()}
    except UnicodeDecodeError:
        return fields | {"header": intent.header, "data_hex": intent.payload.hex()}


def _show(rows: list[dict[str, object]]) -> None:
    print_table(("id", "state", "partition", "key", "tries", "what", "reason"), [_cells(row) for row in rows])


def _cells(row: dict[str, object]) -> tuple[object, ...]:
    what = f"{row['handler']}({json.dumps(row['arguments'])})" if "handler" in row else str(row.get("data", row.get("data_hex", "unreadable")))
    shown = what if len(what) <= DATA_SHOWN_BYTES else f"{what[:DATA_SHOWN_BYTES]}…"
    return (row["id"], row["state"], row.get("partition"), row.get("key", ""), row["tries"], shown, row["reason"])


def retry(directory: Path, dead_ids: list[int], *, everything: bool, data: str | None, arguments: str | None, output: str) -> int:
    """Makes dead letters intents again, one of them with other data or arguments where they are given."""
    with OutboxDirectory(_writable(directory), WallClock().now_ms()) as outbox:
        chosen = _chosen(outbox, dead_ids, everything)
        if (data is not None or arguments is not None) and len(chosen) != 1:
            raise InvalidRequest(reason="other data or arguments are given to one dead letter at a time")
        rows = [{"dead": dead.dead_id, "intent": outbox.retry(dead.dead_id, _edited(dead, data, arguments))} for dead in chosen]
    print_result({"retried": rows}, [f"dead={row['dead']} intent={row['intent']}" for row in rows], output)
    return OK


def _edited(dead: DeadLetter, data: str | None, arguments: str | None) -> Intent | None:
    if data is None and arguments is None:
        return None
    if dead.intent is None:
        raise InvalidRequest(reason=f"this dead letter cannot be read, so its partition is not known: dead_id={dead.dead_id}")
    if arguments is not None:
        if data is not None or not dead.intent.handler:
            raise InvalidRequest(reason="arguments replace those of a call, data replaces that of an append")
        try:
            return Intent.call(dead.intent.handler, json.loads(arguments), dead.intent.partition, dead.intent.key)
        except ValueError as error:
            raise InvalidRequest(reason=f"arguments are not JSON: {error}") from None
    assert data is not None
    if dead.intent.handler:
        raise InvalidRequest(reason="arguments replace those of a call, data replaces that of an append")
    return Intent.data(dead.intent.partition, data.encode(), dead.intent.header, dead.intent.key)


def drop(directory: Path, dead_ids: list[int], *, everything: bool, output: str) -> int:
    with OutboxDirectory(_writable(directory), WallClock().now_ms()) as outbox:
        dropped = [dead.dead_id for dead in _chosen(outbox, dead_ids, everything)]
        for dead_id in dropped:
            outbox.drop(dead_id)
    print_result({"dropped": dropped}, [f"dropped dead={dead_id}" for dead_id in dropped], output)
    return OK


def _chosen(outbox: OutboxDirectory, dead_ids: list[int], everything: bool) -> list[DeadLetter]:
    known = {dead.dead_id: dead for dead in outbox.dead_letters()}
    if everything == bool(dead_ids):
        raise InvalidRequest(reason="name dead letters by their ids, or say --all")
    missing = [dead_id for dead_id in dead_ids if dead_id not in known]
    if missing:
        raise InvalidRequest(reason=f"no such dead letter: dead_id={missing[0]}")
    return list(known.values()) if everything else [known[dead_id] for dead_id in dead_ids]
