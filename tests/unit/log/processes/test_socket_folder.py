"""Where the workers of a node reach each other without TLS."""

from __future__ import annotations

import os
import stat

from waltz_log.processes.socket_folder import SocketFolder


def test_the_sockets_of_workers_are_in_a_new_folder_that_only_their_user_enters() -> None:
    one, other = SocketFolder(), SocketFolder()
    try:
        assert one.path != other.path
        for each in (one, other):
            found = each.path.stat(follow_symlinks=False)
            assert stat.S_ISDIR(found.st_mode)
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.getuid())
            assert list(each.path.iterdir()) == []
    finally:
        one.close()
        other.close()
