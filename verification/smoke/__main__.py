"""`make smoke`. Ends with 1 where anything is wrong, and says how to run the same seed again."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from verification.smoke.plan import SmokePlan
from verification.smoke.run import run
from waltz_log.errors import WaltzError


def main() -> int:
    plan = SmokePlan()
    parser = argparse.ArgumentParser(
        prog="make smoke", description="kills and stops the processes of a real cluster under load, and checks everything"
    )
    parser.add_argument("--transactions", type=int, default=plan.transactions, help="to be committed; 0: as many as go in the time")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="the longest duration of the load")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000), help="of the outages; another one each time by default")
    parser.add_argument("--pace", type=float, default=plan.pace, help="everything so much faster, outages shorter")
    given = parser.parse_args()
    plan = SmokePlan(
        transactions=given.transactions,
        seconds=given.seconds,
        seed=given.seed,
        pace=given.pace,
        session_timeout_s=max(1.0, plan.session_timeout_s / given.pace),
    )
    again = f"make smoke SEED={plan.seed} TRANSACTIONS={plan.transactions} SECONDS={plan.seconds:g} PACE={plan.pace:g}"
    print(f"seed {plan.seed}: {again}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="waltz-smoke-"))
    kept = True
    try:
        report = run(plan, directory, lambda line: print(line, flush=True))
        print(report)
        kept = bool(report.wrong)
    except WaltzError as error:
        print(f"smoke: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("smoke: interrupted", file=sys.stderr)
        kept = False
    finally:
        if not kept:
            shutil.rmtree(directory)
    if kept:
        print(f"the cluster's data and logs: {directory}\nagain: {again}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
