"""Runs a coverage-guided fuzzer on the parsers: `make fuzz`.

    python -m verification.fuzz.fuzz [--seconds 60] [--kept DIRECTORY] [TARGET]

Each target (verification/fuzz/parser_targets.py) gets its share of the seconds in a forked process, because libFuzzer ends the process that it
is in. `ports` names the targets that parse what peers send. An input that breaks a target is written to `DIRECTORY/<target>/`, from where the
tests try it from then on. What reached new code stays in `.cache/fuzz`. The fuzzer is atheris, which has wheels for Linux on x86-64; elsewhere the
tests' hypothesis goes over the same targets.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from contextlib import redirect_stderr
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import NoReturn

__all__ = ["main"]

INPUT_BYTES_MAX = 4096
INPUT_SECONDS_MAX = 60
MEMORY_MB_MAX = 1024

PORTS = "ports"
"""The name of the targets that parse what peers send."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzzes the parsers of storage and core.")
    parser.add_argument("target", nargs="?", help="one of them")
    parser.add_argument("--seconds", type=int, default=60, help="altogether")
    parser.add_argument("--kept", type=Path, default=Path("tests/fuzz"), help="where inputs that break a target are kept")
    parser.add_argument("--corpus", type=Path, default=Path(".cache/fuzz"), help="where inputs that reached something new are kept")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed; it has wheels for Linux on x86-64", file=sys.stderr)
        return 1
    import atheris

    with redirect_stderr(StringIO()), atheris.instrument_imports(include=["waltz_log"]):  # which names each module on stderr
        from verification.fuzz.parser_targets import TARGETS
        from verification.fuzz.port_targets import PORT_TARGETS

    if chosen.target not in (None, PORTS, *TARGETS):
        parser.error(f"no such target: {chosen.target} (there are {PORTS}, {', '.join(TARGETS)})")
    targets = list(TARGETS) if chosen.target is None else list(PORT_TARGETS) if chosen.target == PORTS else [chosen.target]
    seconds = max(1, chosen.seconds // len(targets))
    broken = [target for target in targets if not _fuzzed(target, seconds, chosen.kept / target, chosen.corpus / target)]
    return 1 if broken else 0


def _fuzzed(target: str, seconds: int, kept: Path, corpus: Path) -> bool:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), sys.stdout.fileno())
            os.dup2(output.fileno(), sys.stderr.fileno())
            _fuzz(target, seconds, kept, corpus)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    reported = next((line for line in reversed(lines) if line.startswith(("Done ", "stat::number_of_executed_units", "#"))), "")
    print(f"{target:<18} {'BROKEN' if status else 'ok'}  {reported}", flush=True)
    if status:
        print("\n".join(lines[-40:]), file=sys.stderr)
    return not status


def _fuzz(target: str, seconds: int, kept: Path, corpus: Path) -> NoReturn:
    """In a child process, which ends with it."""
    import atheris

    from verification.fuzz.parser_targets import SEEDS, TARGETS

    corpus.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS[target]:
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-timeout={INPUT_SECONDS_MAX}", f"-max_len={INPUT_BYTES_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}"]
    options += [f"-artifact_prefix={kept}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus), str(kept)], TARGETS[target])
    atheris.Fuzz()  # libFuzzer writes an input that broke the target when the interpreter ends
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
