"""The README's session as one script of bash: set up, a cluster, an append, a Delta row, a query."""

from __future__ import annotations

__all__ = ["COLUMN", "DEV_TWICE", "NO_JARS", "SEEN", "SESSION", "TWO_AT_ONCE", "TWO_CATALOGS", "TWO_WORKERS"]

SEEN = "12A\tZoë"
"""What the query prints at the end: the row went through the log and a table whose name has letters beyond ASCII."""

_DEVELOPMENT = """\
set -eu
make setup
source .venv/bin/activate
mkdir -p var
"""

_SESSION = """\
waltz dev --directory var/{name} --storages 3 --servers 1 > var/{name}.log 2>&1 &
dev=$!
trap 'kill -INT $dev 2> /dev/null; wait $dev' EXIT
for attempt in $(seq 600); do grep -q '^ready' var/{name}.log && break; kill -0 $dev || {{ cat var/{name}.log; exit 1; }}; sleep 0.1; done
CLUSTER=$(sed -n 's/^ready cluster=//p' var/{name}.log)
waltz append $CLUSTER --partition 0 '{{"seat": "12A", "passenger": "Zoë"}}'
spark-submit --properties-file conf/spark-defaults.conf jobs/ingest.py --cluster $CLUSTER --table var/tables/plätze-{name} \\
    --checkpoint var/checkpoints/{name} --schema "seat STRING, passenger STRING" --trigger available-now
test -d var/tables/plätze-{name}/_delta_log
spark-sql --properties-file conf/spark-defaults.conf -e "SELECT seat, passenger FROM delta.\\`$PWD/var/tables/plätze-{name}\\`"
"""

SESSION = _DEVELOPMENT + _SESSION.format(name="dev")

NO_JARS = SESSION.replace("waltz append", "rm -r .cache/delta-jars\nwaltz append")
"""The session without the jars, which something has removed since the set-up."""

COLUMN = SESSION.replace('"passenger"', '"fluggäste"').replace(", passenger ", ", \\`fluggäste\\` ")
"""The session with a column whose name has a letter beyond ASCII."""

DEV_TWICE = f"""\
{_DEVELOPMENT}
for turn in first second; do
  waltz dev --directory var/plätze --storages 3 --servers 1 > var/$turn.log 2>&1 &
  dev=$!
  trap 'kill -INT $dev 2> /dev/null; wait $dev' EXIT
  for attempt in $(seq 600); do grep -q '^ready' var/$turn.log && break; kill -0 $dev || {{ cat var/$turn.log; exit 1; }}; sleep 0.1; done
  CLUSTER=$(sed -n 's/^ready cluster=//p' var/$turn.log)
  [ $turn = second ] || waltz append $CLUSTER --partition 0 "$(printf '12A\\tZoë')"
  waltz read $CLUSTER --partition 0 --limit 1 --output json > var/read.json
  kill -INT $dev
  wait $dev
  trap - EXIT
done
python -c 'import json; print(json.load(open("var/read.json", encoding="utf-8"))["data"])'
"""
"""The second one finds what the first one wrote, in the same folder."""

TWO_WORKERS = f"""\
{_DEVELOPMENT}
python - <<'END'
from pathlib import Path
from waltz_log.client import SyncWaltzClient
from waltz_log.processes.local_cluster import LocalCluster

with LocalCluster(Path("var/workers"), partitions=2, storages=1, servers=1, server_settings={{"workers": 2}}) as cluster:
    with SyncWaltzClient(cluster.cluster) as client:
        client.append(1, "12A\\tZoë".encode())
        print(next(iter(client.feed(1))).data.decode())
END
"""

TWO_AT_ONCE = f"""\
{_DEVELOPMENT}
( {_SESSION.format(name="other")} ) > var/other.out 2>&1 &
other=$!
( {_SESSION.format(name="dev")} )
wait $other
cat var/other.out
"""

TWO_CATALOGS = f"""\
{_DEVELOPMENT}
spark-sql --properties-file conf/spark-defaults.conf -e "SHOW DATABASES; SELECT 'first'" > var/first.log 2>&1
coproc spark-sql --properties-file conf/spark-defaults.conf 2> var/first.log
printf 'SHOW DATABASES;\\n' >&${{COPROC[1]}}
read -r line <&${{COPROC[0]}}
spark-sql --properties-file conf/spark-defaults.conf -e "SHOW DATABASES; SELECT 'second'"
eval "exec ${{COPROC[1]}}>&-"
wait
"""
