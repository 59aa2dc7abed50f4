"""Between the journal and the reference: what an opened journal reported, and what the reference reads from the same disk."""

from __future__ import annotations

from tests.unit.log.journal.reference import ADD, ADD_TX, DELETE_TX, UPDATE, UPDATE_TX, Check, Entry, State, check_size, hash_check, load
from waltz_log.journal import Loaded
from waltz_log.journal.directory import journal_name
from waltz_log.journal.salt import create_salt
from waltz_log.testing.disk import SimulatedDisk

SALT = b"sixteen bytes..."
CHECKS: dict[str, Check] = {"hash": hash_check(SALT), "size": check_size}


def state_of(loaded: Loaded) -> State:
    """In the words of the reference."""
    state = State()
    for each in loaded.records:
        entry = Entry(UPDATE if each.is_update else ADD, each.record_id, 0, each.user_type, each.body)
        state.records.setdefault(each.record_id, []).append(entry)
    for transaction in loaded.prepared:
        reported = [Entry(UPDATE_TX if each.is_update else ADD_TX, each.record_id, 0, each.user_type, each.body) for each in transaction.records]
        state.prepared[transaction.transaction_id] = reported + [Entry(DELETE_TX, record_id) for record_id in transaction.deletes]
    state.failed = set(loaded.failed_transactions) | set(loaded.broken_transactions)
    return state


def contents_of(disk: SimulatedDisk) -> list[bytes]:
    """The files of the journal. With checks by hash the name gives a file's id, so the reference gets it as header."""
    found = []
    for name in disk.list(""):
        content = disk.content(name)
        if name.endswith(".jrh"):
            content = int(name[8:18]).to_bytes(4, "big") + content[4:]
        if name.endswith((".jrh", ".jrn")):
            found.append(content)
    return found


def reference_of(disk: SimulatedDisk, check: str, replaceable: frozenset[int] = frozenset()) -> State:
    return load(contents_of(disk), CHECKS[check], replaceable)


def put(disk: SimulatedDisk, name: str, content: bytes) -> None:
    """A file that is on the medium, name and all."""
    file = disk.open(name, "create")
    file.write(0, content)
    file.sync()
    file.close()
    disk.sync_directory("")


def directory_of(files: dict[int, bytes], check: str) -> SimulatedDisk:
    """A journal's directory with these files, by their ids."""
    disk = SimulatedDisk()
    if check == "hash":
        create_salt(disk, lambda length: SALT)
    for file_id, content in files.items():
        put(disk, journal_name(file_id, "hash" if check == "hash" else "size"), content)
    return disk
