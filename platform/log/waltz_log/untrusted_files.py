"""Opens every file that a person hands over: settings, pipeline files, certificates, keys, key sets, schemas, exports, logs.

The one place that decides what such a file may be. Each kind of file is a value in `KINDS`, with the most bytes that are read and the reason for that
number. A file is opened without waiting, so a named pipe cannot hold a process, and is judged by its descriptor, so it cannot be exchanged after the
check. Only a regular file is read. A file that is refused raises `OSError`, whose `strerror` completes "cannot be read: …".

A link is followed: Kubernetes mounts secrets and settings as links. In a directory that a person hands over, such as a storage directory or a
backup, a link is refused instead (`open_regular` with `follow=False`), because it could name any file of this machine.

YAML is composed before it is constructed: aliases may repeat nodes, but no more than `NODES_MAX` after each alias is replaced by its anchor.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final  # Any: values of YAML

if TYPE_CHECKING:
    import yaml

__all__ = [
    "AUTHORITIES",
    "CERTIFICATE",
    "CHECKPOINT",
    "CONSTRUCTION_ERRORS",
    "DESCRIPTOR",
    "DEVELOPMENT",
    "EXPORT",
    "FACTS",
    "KEY",
    "KEY_SET",
    "KINDS",
    "LOG",
    "METRICS",
    "PIPELINE",
    "PRIVATE",
    "PRIVATE_DIRECTORY",
    "PUBLIC",
    "REMEMBERED",
    "SETTINGS",
    "TOKEN",
    "FileKind",
    "children",
    "compose_yaml",
    "construction_reason",
    "load_yaml",
    "make_private_directory",
    "open_lines",
    "open_regular",
    "read_bytes",
    "read_tail",
    "read_text",
    "write_private",
]

KIB: Final = 1024
MIB: Final = 1024 * KIB

PRIVATE: Final = 0o600
"""The mode of each file that holds data, keys, journals or evidence: only its user reads it, whatever the umask."""

PRIVATE_DIRECTORY: Final = 0o700
PUBLIC: Final = 0o644
"""The mode of a file for other users, such as a certificate."""

NODES_MAX: Final = 20_000
"""Nodes of a YAML document after aliases are replaced. The largest pipeline file has hundreds of landings of some twenty nodes each."""

DEPTH_MAX: Final = 32
"""Nesting of a YAML document. Settings and pipelines nest four deep; the composer recurses."""


NUMBER_MAX: Final = 100
"""Characters of a number in YAML. Python reads one of any length in another base and then refuses to write it out."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """`bytes_max`: a larger file is refused. `why`: the reason for the number. `name`: what the file is, in messages of tests and docs."""

    name: str
    bytes_max: int
    why: str


SETTINGS: Final = FileKind("settings", 256 * KIB, "the longest settings file has 60 lines; a YAML file of this size is parsed in 2 s")
PIPELINE: Final = FileKind("pipeline file", 256 * KIB, "a pipeline of 300 landings; a YAML file of this size is parsed in 2 s")
CERTIFICATE: Final = FileKind("certificate", 256 * KIB, "a chain of 100 certificates")
KEY: Final = FileKind("key", 64 * KIB, "an RSA key of 16,384 bits has 13 KiB")
AUTHORITIES: Final = FileKind("authorities", 4 * MIB, "ten times the bundle of a Linux distribution")
KEY_SET: Final = FileKind("key set", 1 * MIB, "a set of 1,000 RSA keys")
TOKEN: Final = FileKind("token", 64 * KIB, "a token has at most 16 KiB")
DESCRIPTOR: Final = FileKind("descriptor", 16 * MIB, "a descriptor set of 1,000 message files; Spark sends it to each task")
FACTS: Final = FileKind("directory facts", 64 * MIB, "the facts of 300,000 partitions")
CHECKPOINT: Final = FileKind("checkpoint", 16 * MIB, "the offsets of 500,000 partitions")
METRICS: Final = FileKind("job metrics", 4 * MIB, "the metrics of 1,000 landings")
DEVELOPMENT: Final = FileKind("development cluster", 1 * MIB, "the ports and processes of 1,000 nodes")
REMEMBERED: Final = FileKind("remembered value", 2 * MIB, "rules, and topics, are each one value of the coordinator, of at most a megabyte")
EXPORT: Final = FileKind("journal export", 1 << 62, "read line by line; the length of a line is limited instead")
LOG: Final = FileKind("log", 1 << 62, "only the end is read")

KINDS: Final = (
    SETTINGS,
    PIPELINE,
    CERTIFICATE,
    KEY,
    AUTHORITIES,
    KEY_SET,
    TOKEN,
    DESCRIPTOR,
    FACTS,
    CHECKPOINT,
    METRICS,
    DEVELOPMENT,
    REMEMBERED,
    EXPORT,
    LOG,
)
"""Each has a row in the matrix of tests/integration/log/test_untrusted_files.py; a kind without one fails it."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = PRIVATE, *, follow: bool = True) -> int:
    """The descriptor of a regular file. Raises `OSError` for everything else, at once: opening a named pipe would wait for its other end."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW), mode)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow and os.path.islink(path):
            raise _refused(errno.ELOOP, "it is a symbolic link, not a file", path) from None
        if error.errno == errno.ENXIO:  # a socket, or a named pipe opened for writing
            raise _refused(errno.ENXIO, "it is a socket or a named pipe, not a file", path) from None
        raise
    except ValueError:  # a null character in the name
        raise _refused(errno.EINVAL, "its name holds a null character", path) from None
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found):
        os.close(descriptor)
        raise _refused(errno.EISDIR if stat.S_ISDIR(found) else errno.EINVAL, f"it is a {_what(found)}, not a file", path)
    return descriptor


def read_bytes(path: Path, kind: FileKind) -> bytes:
    """The contents. Raises `OSError` also for a file that is larger than the kind's limit, without reading it."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > kind.bytes_max else file.read(kind.bytes_max + 1)  # it may grow
        if size > kind.bytes_max or len(data) > kind.bytes_max:
            raise _refused(errno.EFBIG, f"it has {max(size, len(data))} bytes, more than the {kind.bytes_max} that a {kind.name} may have", path)
        return data


def read_text(path: Path, kind: FileKind) -> str:
    """The contents in UTF-8. Raises `OSError` also for another encoding."""
    try:
        return read_bytes(path, kind).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(errno.EILSEQ, f"it is not text in UTF-8, at byte {error.start}", path) from None


def read_tail(path: Path, kind: FileKind, bytes_max: int) -> bytes:
    """At most the last `bytes_max` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        file.seek(max(0, min(os.fstat(file.fileno()).st_size, kind.bytes_max) - bytes_max))
        return file.read(bytes_max)


def open_lines(path: Path, kind: FileKind) -> IO[str]:
    """For a file that is read line by line: the caller limits the length of a line. Decoding a line raises `ValueError`."""
    file = os.fdopen(open_regular(path), "r", encoding="utf-8")
    if os.fstat(file.fileno()).st_size > kind.bytes_max:
        file.close()
        raise _refused(errno.EFBIG, f"it has more bytes than the {kind.bytes_max} that a {kind.name} may have", path)
    return file


def load_yaml(text: str) -> Any:
    """The value of a YAML document. Raises `ValueError` with the reason, in one line, if it is none or exceeds a limit."""
    import yaml  # only here: commands without a settings file start sooner

    try:
        loader = yaml.SafeLoader(text)
        try:
            node = compose_yaml(loader)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, *CONSTRUCTION_ERRORS) as error:
        raise ValueError(construction_reason(error, whole=True)) from None


CONSTRUCTION_ERRORS: Final = (ValueError, OverflowError, RecursionError, LookupError, TypeError, AttributeError)
"""What the constructor of YAML raises for a value that is none, beside its own errors: a 13th month, `!!bool 7`, `!!timestamp x`, `!!int ""`."""

REASON_MAX: Final = 300
"""Characters of a reason: an error of the parser quotes the file."""


def construction_reason(error: Exception, *, whole: bool = False) -> str:
    """In one line. `whole`: with the line and column where the parser stopped."""
    if isinstance(error, LookupError | TypeError | AttributeError):
        return "a value does not match its tag"
    text = str(error) if whole else str(getattr(error, "problem", None) or error)
    return " ".join(text.split())[:REASON_MAX]


def compose_yaml(loader: yaml.SafeLoader) -> yaml.Node | None:
    """The root of the only document. Raises `ValueError` if an alias holds itself or there are too many nodes, and what the composer raises."""
    root = loader.get_single_node()
    if root is not None:
        _count(root, {}, 1)
    return root


def _count(node: yaml.Node, counted: dict[int, int], depth: int) -> int:
    """Nodes below and including this one, where each alias counts as all that its anchor holds."""
    known = counted.get(id(node))
    if known == 0:
        raise ValueError(f"an alias in line {node.start_mark.line + 1} holds itself")
    if known is not None:
        return known
    if depth > DEPTH_MAX:
        raise ValueError(f"it nests deeper than {DEPTH_MAX} in line {node.start_mark.line + 1}")
    if node.tag == "tag:yaml.org,2002:int" and len(node.value) > NUMBER_MAX:
        raise ValueError(f"a number of {len(node.value)} characters in line {node.start_mark.line + 1}")
    counted[id(node)] = 0  # being counted
    total = 1
    for child in children(node):
        total += _count(child, counted, depth + 1)
        if total > NODES_MAX:
            raise ValueError(f"it has more than {NODES_MAX} nodes after aliases are replaced")
    counted[id(node)] = total
    return total


def children(node: yaml.Node) -> list[yaml.Node]:
    """The nodes of a mapping, keys and values, or of a sequence."""
    value: Any = node.value
    items = value if isinstance(value, list) else ()
    return [each for item in items for each in (item if isinstance(item, tuple) else (item,))]


def make_private_directory(path: Path, *, parents: bool = True) -> None:
    """Creates a directory that only its user opens, whatever the umask. An existing one keeps its mode, and so do the parents that exist."""
    if parents and not path.parent.exists():
        make_private_directory(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_DIRECTORY)
        path.chmod(PRIVATE_DIRECTORY)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", str(path))


def write_private(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Replaces a file at once. A link under the name is replaced and not followed; no other user can open the new file before it has its mode."""
    new = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()  # the remains of a killed process, or a link that another user made
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _refused(number: int, reason: str, path: str | os.PathLike[str]) -> OSError:
    return OSError(number, reason, str(path))


def _what(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISFIFO, "named pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    )
    return next((name for test, name in kinds if test(mode)), "special file")
