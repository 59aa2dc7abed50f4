"""Runs a coverage-guided fuzzer on the parsers: `make fuzz`.

    python -m verification.fuzz.fuzz [--seconds 60] [--kept DIRECTORY] [TARGET]

Each target (verification/fuzz/parser_targets.py) gets its share of the seconds in a process of its own, because libFuzzer ends the process that it
is in. An input that breaks a target is written to `DIRECTORY/<target>/`, from where the tests try it from then on; what was learnt about coverage
stays in
`.cache/fuzz`. The fuzzer is atheris, which has wheels for Linux on x86-64; elsewhere the tests' hypothesis goes over the same targets.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

__all__ = ["main"]

INPUT_BYTES_MAX = 4096
MEMORY_MB_MAX = 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzzes the parsers of storage and core.")
    parser.add_argument("target", nargs="?", help="one of them")
    parser.add_argument("--seconds", type=int, default=60, help="altogether")
    parser.add_argument("--kept", type=Path, default=Path("tests/fuzz"), help="where inputs that break a target are kept")
    parser.add_argument("--corpus", type=Path, default=Path(".cache/fuzz"), help="where inputs that reached something new are kept")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed; it has wheels for Linux on x86-64", file=sys.stderr)
        return 1
    if chosen.inside:
        return _inside(chosen.target, chosen.seconds, chosen.kept / chosen.target, chosen.corpus / chosen.target)
    from verification.fuzz.parser_targets import TARGETS

    if chosen.target is not None and chosen.target not in TARGETS:
        parser.error(f"no such target: {chosen.target} (there are {', '.join(TARGETS)})")
    targets = list(TARGETS) if chosen.target is None else [chosen.target]
    broken = [target for target in targets if not _fuzzed(target, max(1, chosen.seconds // len(targets)), chosen.kept, chosen.corpus)]
    return 1 if broken else 0


def _fuzzed(target: str, seconds: int, kept: Path, corpus: Path) -> bool:
    command = [sys.executable, "-m", "verification.fuzz.fuzz", target, "--inside", "--seconds", str(seconds)]
    command += ["--kept", str(kept), "--corpus", str(corpus)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300)
    lines = ended.stderr.splitlines()
    reported = next((line for line in reversed(lines) if line.startswith(("Done ", "stat::number_of_executed_units", "#"))), "")
    print(f"{target:<18} {'ok' if ended.returncode == 0 else 'BROKEN'}  {reported}", flush=True)
    if ended.returncode != 0:
        print("\n".join(lines[-40:]), file=sys.stderr)
    return ended.returncode == 0


def _inside(target: str, seconds: int, kept: Path, corpus: Path) -> int:
    import atheris

    with atheris.instrument_imports(include=["waltz_log"]):
        from verification.fuzz.parser_targets import SEEDS, TARGETS
    corpus.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS[target]:
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-artifact_prefix={kept}/"]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", str(corpus), str(kept)], TARGETS[target])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
