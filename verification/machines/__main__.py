"""`make machines`: each condition in a clone of its own, which ends in the README's session or in the documented sentence. Prints a table, and ends
with 1 if a condition ended otherwise. Some conditions need root, for a namespace or another user.

`COMMAND='make test'` runs another command there, in the conditions that end in the session: whole, with its output, in a clone that is not set up.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tools.set_up import ENVIRONMENT
from verification.machines.clones import ROOT, bring_history, users_environment
from verification.machines.conditions import CONDITIONS, Condition
from verification.machines.judging import judge
from verification.machines.producers import Machine
from verification.machines.session import SESSION, TWO_AT_ONCE

TIMEOUT_S = 600


def run(condition: Condition, parent: Path, *, whole: bool = False) -> str | None:
    """What went wrong, with the end of the output, or None. `whole`: shows all output as it comes, without a limit of time, and begins as a new user
    does, with the history and without an environment."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    folder.chmod(0o755)  # another user's programs run there
    try:
        machine = Machine(folder)
        (folder / "home").mkdir()
        clone = condition.make(machine)
        environment = users_environment(folder / "home", machine.environment)
        command = [*shlex.split(condition.inside), condition.command] if condition.inside else ["bash", "-c", condition.command]
        if whole:
            shutil.rmtree(clone / ENVIRONMENT)
            bring_history(clone)
            code = subprocess.run(command, cwd=clone, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
            return f"exit code {code}" if code else None
        done = subprocess.run(
            command,
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
        return judge(condition, done.returncode, done.stdout.decode(errors="replace"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_its_place(condition: Condition, command: str) -> str:
    """What the condition runs, with the command where the session was; twice at once where two sessions were."""
    if condition.command == TWO_AT_ONCE:
        return f"set -u\n( {command} ) &\n( {command} ) || exit 1\nwait $!"
    return condition.command.replace(SESSION, command)


def main() -> int:
    parser = argparse.ArgumentParser(prog="machines", description="The first minutes on machines that are not empty.")
    parser.add_argument("--short", action="store_true", help="one session under most conditions at once, and every refusal")
    parser.add_argument("--command", help="runs this instead of the session, where a condition ends in the session")
    parser.add_argument("only", nargs="*", help="parts of the names of conditions")
    given = parser.parse_args()
    parent = ROOT / "var" / "machines"
    parent.mkdir(parents=True, exist_ok=True)
    wanted = [each for each in CONDITIONS if (each.short or not given.short) and (not given.only or any(part in each.name for part in given.only))]
    if given.command is not None:
        wanted = [replace(each, command=in_its_place(each, given.command)) for each in wanted if each.has_session]
    failed = 0
    for condition in wanted:
        began_s = time.monotonic()
        problem = run(condition, parent, whole=given.command is not None)
        failed += problem is not None
        result = "FAILED" if problem else "sentence" if condition.fails else "session"
        print(f"{result:9} {time.monotonic() - began_s:5.1f} s  {condition.name}", flush=True)
        if problem:
            print(problem, file=sys.stderr, flush=True)
    print(f"machines: {len(wanted) - failed} of {len(wanted)} conditions ended as documented")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
