"""What the exit code of a command says, so that scripts and supervisors can decide what to do.

| code | meaning | what to do |
|---|---|---|
| 0 | done, or ended as asked by a signal | |
| 1 | a defect, or a check that found something | read the message |
| 2 | the command line or a setting is wrong, or the command needs another extra; nothing was done | fix it |
| 3 | no node answers, or not in time | try again |
| 4 | refused: another cluster or owner, a newer session, a topic's partition, a restored coordinator, not allowed | check which one is current |
| 5 | a disk failed, is full or holds corrupt data; an address cannot be bound; a worker process does not stay up | repair this machine |
| 6 | the machine lacks something, such as Java | run `waltz doctor` |
| 7 | a lock conflict: another transaction wrote the lock first | read up to it, and decide again |
| 130 | interrupted by Ctrl-C | |
| 141 | the reader of the output closed it, as `head` does | |

Each error class declares its code, or inherits it (`WaltzError.exit_code`). docs/reference/errors.md lists them all.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLOSED_PIPE", "CONFLICT", "DEFECT", "FAILED", "INTERRUPTED", "LACKING", "MACHINE", "OK", "REFUSED", "UNAVAILABLE", "USAGE"]

OK: Final = 0
DEFECT: Final = 1
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
REFUSED: Final = 4
MACHINE: Final = 5
LACKING: Final = 6
CONFLICT: Final = 7
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it of other programs."""
CLOSED_PIPE: Final = 141
"""128 + SIGPIPE, as shells report it of other programs."""
