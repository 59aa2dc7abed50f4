"""The processor time of other processes. On a shared machine it is more meaningful than elapsed time."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["processor_s"]


def processor_s(pid: int) -> float:
    """Seconds of user and system time that the process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
