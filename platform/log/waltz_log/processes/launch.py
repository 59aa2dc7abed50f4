"""Becomes another program that dies with its parent. Run as a script, by path, with the parent's process id and the command; imports next to nothing.

On Linux the kernel is asked to kill this process when the thread that started it ends, whatever ends it; elsewhere the command runs as it is.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"the parent is gone: pid={parent}")  # it died before the kernel was asked
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
