"""`jobs/ingest.py` on a disk of its own that is full in the second and third life of the job. Prints how each life ended.

unshare -m python -m tests.e2e.on_a_full_disk DISK DIRECTORY    mounts a small tmpfs at DISK, which vanishes with the process
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.legs_landed import NAMES, LegsLog, pipeline_text
from tests.e2e.submitted import PATIENCE_S, ROOT, SUBMIT
from verification.lake.log_table import held_rows
from waltz_log.processes.local_cluster import LocalCluster

PAGE_BYTES = 4096
MOUNTED_BYTES = 8 << 20
PAGES_LEFT = (0, 5)
"""In the second and the third life. The last one writes some files of the batch and not all."""


def rows(disk: Path) -> dict[str, int]:
    return {name: held_rows(str(disk / name), {}).num_rows for name in (*NAMES, "dead")}


def main() -> int:
    disk, directory = map(Path, sys.argv[1:])
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MOUNTED_BYTES}", "tmpfs", str(disk)], check=True)
    pipeline, filler = directory / "legs.yaml", disk / "filler"
    with LocalCluster(directory / "cluster", partitions=2) as cluster:
        log = LegsLog(cluster.cluster)
        pipeline.write_text(pipeline_text(cluster.cluster, str(disk), directory / "checkpoint", {}, restarts=0))

        def live() -> None:
            command = [*SUBMIT, "jobs/ingest.py", f"--pipeline={pipeline}"]
            pipe = subprocess.PIPE  # spark-submit prints what the job prints, to whichever, on its standard output
            ended = subprocess.run(command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False)
            said = ended.stdout.rstrip().rpartition("\n")[2]
            print(
                json.dumps({"code": ended.returncode, "said": said, "rows": rows(disk), "differs": bool(log.differences(str(disk), {}))}), flush=True
            )

        log.append(60)
        live()
        log.append(60)
        for pages in PAGES_LEFT:
            with filler.open("w") as file:
                os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * PAGE_BYTES - pages * PAGE_BYTES)
            live()
            filler.unlink()
        live()
    return 0


if __name__ == "__main__":
    sys.exit(main())
