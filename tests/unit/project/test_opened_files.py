"""Each place of the product that opens, creates or parses a file by its path is known here, so that a new one is a decision: a file of a person goes
through `waltz_log.untrusted_files`, and has a row in the matrix of tests/integration/log/files."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3] / "platform"

OPENERS = frozenset(
    ("read_text", "read_bytes", "write_text", "write_bytes", "safe_load", "load_cert_chain", "load_verify_locations", "mkdir", "makedirs")
)

KNOWN = {
    "log/waltz_log/untrusted_files.py: mkdir": "the place itself",
    "log/waltz_log/untrusted_files.py: os.open": "the place itself",
    "log/waltz_log/filesystem.py: os.open": "a directory, to sync it",
    "log/waltz_log/cli/main.py: os.open": "/dev/null",
    "log/waltz_log/cli/checks.py: read_bytes": "a jar in the project's own cache, to compare its hash",
    "log/waltz_log/cli/checks.py: read_text": "the list of pinned jars in the project",
    "sink/waltz_delta/launch.py: mkdir": "a folder of the environment for temporary files, where /tmp runs nothing",
    "sink/waltz_delta/launch.py: Path.open": "Derby's lock in the current folder, which is only locked",
    "log/waltz_log/cli/storage/storage_copies.py: os.open": "the control file, which the command has found to be a file, to ask for its lock",
    "log/waltz_log/cli/support/bundle.py: os.open": "creates the archive, exclusively",
    "log/waltz_log/processes/socket_folder.py: os.open": "a directory of this process",
    "log/waltz_log/storage/offline/staging.py: os.open": "a directory, to sync it",
    "log/waltz_log/security/certificates.py: load_cert_chain": "files whose contents were read before, within limits",
    "log/waltz_log/security/certificates.py: load_verify_locations": "files whose contents were read before, within limits",
    "log/waltz_log/processes/children.py: Path.open": "the log of a child, in a directory of this user",
    "log/waltz_log/processes/local_cluster.py: Path.open": "the lock, in a directory of this user",
    "log/waltz_log/security/audit_log.py: open": "through its own opener",
    "log/waltz_log/security/audit_log.py: os.open": "an output that settings name, such as a file or /dev/stdout, with its mode",
    "log/waltz_log/security/denied_principals.py: mkdir": "with its mode",
    "log/waltz_log/security/denied_principals.py: open": "a descriptor",
    "log/waltz_log/security/denied_principals.py: os.open": "follows no link, waits for no pipe, and reads a limited number of bytes",
    "log/waltz_log/coordination/remembered_values.py: open": "a descriptor",
    "log/waltz_log/coordination/remembered_values.py: os.open": "creates a file, exclusively, with its mode",
    "spark_source/pyspark_waltz/testing.py: read_text": "a simulated cluster of a test",
    "spark_source/pyspark_waltz/testing.py: write_text": "a simulated cluster of a test",
    "sink/waltz_delta/tables/table_watch.py: read_text": "a file of this job in its checkpoint, through Hadoop",
    "sink/waltz_delta/tables/table_watch.py: write_text": "a file of this job in its checkpoint, through Hadoop",
    "sink/waltz_delta/base/local_lock.py: makedirs": "the folder of a table, which Delta shares with other users",
    "sink/waltz_delta/base/local_lock.py: os.open": "a directory, to lock it",
    "sink/waltz_delta/base/local_lock.py: read_text": "/proc/locks",
    "sink/waltz_delta/engine/arrow_table.py: mkdir": "the folder of a table, which Delta shares with other users",
    "sink/waltz_delta/engine/commit_files.py: Path.open": "creates a file in the log of a table, exclusively",
    "sink/waltz_delta/engine/commit_files.py: read_bytes": "what a table has in its log, at the end of each commit",
    "sink/waltz_delta/engine/log_end.py: read_bytes": "what a table has in its log, for the end of the log",
    "sink/waltz_delta/engine/stores.py: os.open": "a file or directory of a table that was just written, to sync it",
    "log/waltz_log/transport/inherited.py: read_text": "the name of a thread of this process, in /proc",
    "sink/waltz_delta/pipelines/metrics.py: mkdir": "the folder of metrics, which a collector of another user reads",
}


def _calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function, first = node.func, node.args[0] if node.args else None
        if isinstance(function, ast.Name) and function.id == "open":
            yield "open"
        elif isinstance(function, ast.Attribute) and function.attr in OPENERS:
            yield function.attr
        elif isinstance(function, ast.Attribute) and function.attr == "open" and isinstance(function.value, ast.Name) and function.value.id == "os":
            yield "os.open"
        elif isinstance(function, ast.Attribute) and function.attr == "open" and isinstance(first, ast.Constant) and str(first.value)[:1] in "rwax":
            yield "Path.open"


def test_each_place_that_opens_a_file_by_its_path_is_known() -> None:
    found = Counter(
        f"{path.relative_to(ROOT)}: {call}" for path in sorted(ROOT.rglob("*.py")) for call in _calls(ast.parse(path.read_text(encoding="utf-8")))
    )
    assert sorted(found) == sorted(KNOWN)


def test_the_search_finds_what_it_is_for() -> None:
    text = "open(p)\nPath(p).open('rb')\np.read_text()\nos.open(p, 0)\nyaml.safe_load(p)\np.mkdir()\ndisk.open(p, 'read')\n"
    assert sorted(_calls(ast.parse(text))) == ["Path.open", "mkdir", "open", "os.open", "read_text", "safe_load"]
