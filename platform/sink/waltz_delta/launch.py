"""Starts a program of the installed Spark (`spark-submit`, `spark-sql`, …) without the caller's variables of another Spark, Python, Hadoop or locale.

`make setup` writes such programs into the environment's `bin`, in front of Spark's own: `python -I -m waltz_delta.launch spark-submit ARGUMENTS…`.
The process becomes Spark's, so that signals and process ids are those of the caller's child.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from waltz_log import machine_faults
from waltz_log.child_environment import spark_environment, utf8_locale
from waltz_log.coordination.java import SPARK_MODULES, JavaMissing, find_java
from waltz_log.exit_codes import LACKING

__all__ = ["PROGRAMS", "clean_environment", "enter_environment", "fault", "main", "metastore_used"]

PROGRAMS = ("pyspark", "spark-pipelines", "spark-shell", "spark-sql", "spark-submit")

WITH_CATALOG = frozenset({"pyspark", "spark-shell", "spark-sql"})
METASTORE = ("--conf", "spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:memory:metastore;create=true")


def main(arguments: Sequence[str]) -> NoReturn:
    """Becomes the program. If that cannot start, exits after one sentence on stderr."""
    program, *given = arguments
    if (problem := fault(given, os.environ)) is not None:
        _refuse(program, problem)
    if (problem := machine_faults.foreign_code(Path(), machine_faults.__file__)) is not None:
        print(f"{program}: {problem}", file=sys.stderr, flush=True)
    try:
        environment = clean_environment()
    except JavaMissing as error:
        _refuse(program, str(error))
    machine_faults.raise_file_limit()
    own: tuple[str, ...] = ()
    if program in WITH_CATALOG and metastore_used(Path.cwd()):
        print(f"{program}: another session uses the catalog in metastore_db; this one has its own, in memory", file=sys.stderr, flush=True)
        own = METASTORE
    started = f"{environment['SPARK_HOME']}/bin/{program}"
    os.execve(started, [started, *own, *given], environment)


def _refuse(program: str, problem: str) -> NoReturn:
    print(f"{program}: {problem}", file=sys.stderr)
    sys.exit(LACKING)


def enter_environment() -> None:
    """Gives this process the environment of Spark's programs, for a session that it starts itself. Raises `JavaMissing`."""
    clean = clean_environment()
    for name in set(os.environ) - set(clean):
        del os.environ[name]
    os.environ.update(clean)


def fault(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Why Spark would fail, or damage the arguments, in one sentence."""
    problem = machine_faults.unnamed_user() or machine_faults.low_file_limit() or machine_faults.undecodable(arguments)
    if problem is None and utf8_locale(environment) is None and not all(argument.isascii() for argument in arguments):
        return "this machine has no locale with UTF-8, so Java would lose letters of the arguments; install C.UTF-8 or en_US.UTF-8"
    return problem


def metastore_used(folder: Path) -> bool:
    """Whether another process holds Derby's lock on the catalog in the folder. Derby allows one process, and ends the second with a long trace."""
    try:
        with (folder / "metastore_db" / "dbex.lck").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def clean_environment() -> dict[str, str]:
    """For a program of Spark, from this process's environment. Raises `JavaMissing`."""
    spec = importlib.util.find_spec("pyspark")  # does not import it
    assert spec is not None
    assert spec.submodule_search_locations is not None
    java, _ = find_java(os.environ, SPARK_MODULES)
    home = Path(spec.submodule_search_locations[0])
    environment = spark_environment(os.environ, python=Path(sys.executable), spark_home=home, java=java)
    if machine_faults.java_temporary() is not None:
        temporary = Path(sys.prefix) / "tmp"
        temporary.mkdir(exist_ok=True)
        environment["SPARK_SUBMIT_OPTS"] = f'{environment.get("SPARK_SUBMIT_OPTS", "")} "-Djava.io.tmpdir={temporary}"'.strip()
    return environment


if __name__ == "__main__":
    main(sys.argv[1:])
