"""What about this machine, account or folder would end in the exception of a tool underneath, in one sentence each, or None. Changes nothing, except
`raise_file_limit`. Runs before anything is installed, so it uses only the standard library.
"""

from __future__ import annotations

import errno
import os
import pwd
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = [
    "FILES_MIN",
    "foreign_code",
    "java_temporary",
    "low_file_limit",
    "not_opened",
    "raise_file_limit",
    "undecodable",
    "unnamed_user",
    "unusable_folder",
]

FILES_MIN: Final = 1024
"""Files that a process may have open: Spark opens its 250 jars, a storage node the segments of its partitions."""

FILES_WANTED: Final = 4096


def unnamed_user(user: int | None = None) -> str | None:
    """Hadoop, below Spark, asks the system for the user's name and accepts no other answer."""
    user = os.geteuid() if user is None else user
    try:
        pwd.getpwuid(user)
    except KeyError:
        return f"user id {user} has no entry in the password file, which Spark needs; add one to /etc/passwd, or run as another user"
    return None


def low_file_limit(limits: tuple[int, int] | None = None, *, needed: int = FILES_MIN) -> str | None:
    """The hard limit: `raise_file_limit` raises the soft one to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE) if limits is None else limits
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"a process may open only {hard} files, and {needed} are needed; raise the hard limit (ulimit -Hn, or nofile in limits.conf)"
    return None


def raise_file_limit(wanted: int = FILES_WANTED) -> None:
    """Raises the soft limit of open files as far as it is useful and allowed; child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def not_opened(error: OSError) -> str:
    """Why the system opened no file or socket, and what to raise if there are too many."""
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"the process has all {limit} files open that it may; raise its limit (LimitNOFILE of the unit, or nofile in limits.conf)"
    if error.errno == errno.ENFILE:
        return "all files are open that the machine may open; raise fs.file-max"
    return error.strerror or str(error)


def unusable_folder(project: Path) -> str | None:
    """The folder of the clone: programs separate lists of paths with colons, and `make setup` writes below it."""
    if ":" in str(project):
        return f"the path of this folder has a colon, which separates paths in lists: {project}; move the clone"
    if not os.access(project, os.W_OK):
        try:
            owner = pwd.getpwuid(project.stat().st_uid).pw_name
        except KeyError:
            owner = f"user id {project.stat().st_uid}"
        return f"this folder belongs to {owner} and cannot be written by you: {project}; clone it again as yourself"
    return None


def foreign_code(project: Path, module: str) -> str | None:
    """`module`: the file of an imported module of ours. A copied environment imports the code of the clone that it was made in."""
    if (project / "platform" / "log" / "waltz_log").is_dir() and not Path(module).resolve().is_relative_to(project.resolve()):
        return f"waltz_log is imported from {Path(module).resolve().parent}, not from this folder; run make setup here"
    return None


def java_temporary(here: Path | None = None) -> str | None:
    """Java's folder for temporary files (not `TMPDIR`). Libraries of Spark unpack native code there and run it."""
    folder = Path("/tmp") if here is None else here
    try:
        runs_nothing = bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError as error:
        return f"{folder} cannot be used for temporary files, {error.strerror}"
    return f"{folder} is mounted noexec, and libraries of Spark unpack native code there" if runs_nothing else None


def undecodable(arguments: Iterable[str]) -> str | None:
    """Java reads arguments as UTF-8, whatever encoding the user's terminal has."""
    for argument in arguments:
        try:
            os.fsencode(argument).decode()
        except UnicodeDecodeError:
            return f"an argument is not UTF-8, so its letters would be lost: {argument!r}; use a terminal with UTF-8"
    return None
