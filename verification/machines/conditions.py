"""What is different about a machine, and what must happen there: the whole session, a set-up that ends, or one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verification.machines import producers as made
from verification.machines.producers import Machine
from verification.machines.session import COLUMN, DEV_TWICE, NO_JARS, SEEN, SESSION, TWO_AT_ONCE, TWO_CATALOGS, TWO_WORKERS

__all__ = ["CONDITIONS", "Condition"]


@dataclass(frozen=True)
class Condition:
    """`make`: makes the clone and the condition, and returns the clone. `command` runs in it under bash, and in `inside` (a namespace that root may
    make). `expected` is in its output; unless `fails`, it succeeds. `short`: part of the run in CI. `ends`: what happens, for the page of conditions;
    `expected` follows it if that is a sentence."""

    name: str
    make: Callable[[Machine], Path]
    command: str = SESSION
    expected: str = SEEN
    fails: bool = False
    inside: str = ""
    short: bool = False
    ends: str = "The session works."

    @property
    def has_session(self) -> bool:
        """Whether another command can stand where the session is."""
        return SESSION in self.command or self.command == TWO_AT_ONCE


ACTIVATED = "source .venv/bin/activate && "
NAMELESS, NOBODY = 4_000_001, 65_534
NETWORK = "unshare --net -- bash -c"
HOSTNAME = "unshare --uts -- bash -c"
MOUNTS = "unshare --mount -- bash -c"

USER, HASHES, WHEELS, CONSTRAINT = "user = true", "require-hashes = true", "only-binary = :all:", "constraint = {folder}/foreign.txt"
ALL_OF_THEM = "\n".join((USER, HASHES, WHEELS, CONSTRAINT))
SMALL_TMPDIR = "mkdir -p var/small && mount -t tmpfs -o size=64k tmpfs var/small && export TMPDIR=$PWD/var/small"
INSTALLED = "setup: installing the packages, and Java with them(.|\n)*setup: done"

AS_NAMELESS = f"setpriv --reuid {NAMELESS} --clear-groups bash -c"
AS_NOBODY = f"setpriv --reuid {NOBODY} --clear-groups bash -c"
DOCTOR = f"{ACTIVATED}waltz doctor --output json"
UNDER_ANOTHER = "PYTHONPATH=$SPARK_HOME/python .venv/bin/python jobs/ingest.py"
FOREIGN = "waltz: waltz_log is imported from .*, not from this folder; run make setup(.|\n)*spark-submit: waltz_log is imported from"


def _installed(name: str, settings: str, command: str = "make setup", inside: str = "", *, folder: str = "clone", **variables: str) -> Condition:
    ends = "Set-up installs the packages and a Java."
    return Condition(name, made.installing(settings, folder, **variables), command, INSTALLED, inside=inside, ends=ends)


def _made_again(name: str, make: Callable[[Machine], Path], sentence: str, *, short: bool = False) -> Condition:
    """Without an index, so that it ends there."""
    return Condition(name, make, "make setup", sentence, True, short=short, ends="Set-up makes the environment again:")


def _refused(name: str, make: Callable[[Machine], Path], command: str, sentence: str, inside: str = "", *, short: bool = True) -> Condition:
    return Condition(name, make, command, sentence, True, inside, short, "The command ends with one sentence:")


CONDITIONS = (
    Condition("a folder with a space and an umlaut", made.having(name="Büro für Plätze")),
    Condition("another Spark, Hadoop and Python in the environment", made.another_spark),
    Condition("no locale with UTF-8 (LC_ALL=C)", made.having(LC_ALL="C")),
    Condition("a column with an umlaut, no locale with UTF-8", made.having(LC_ALL="C"), COLUMN),
    Condition("a name of the host that does not resolve", made.having(), f"hostname name.invalid\n{SESSION}", inside=HOSTNAME),
    Condition("half a Maven cache in the home, no jars yet", made.half_a_maven_cache),
    Condition("a truncated jar in the project's cache", made.truncated_jar),
    Condition("/tmp mounted noexec", made.having(), f"mount -t tmpfs -o noexec tmpfs /tmp\n{SESSION}", inside=MOUNTS),
    Condition("no Java, with the one that set-up brings", made.own_java),
    Condition("a user without rights", made.of_an_ordinary_user(NOBODY, home=True), inside=AS_NOBODY),
    Condition("a home that cannot be written", made.of_an_ordinary_user(NOBODY, home=False), inside=AS_NOBODY),
    Condition("files for their owner alone (umask 077)", made.having(), f"umask 077\n{SESSION}"),
    Condition("a soft limit of 256 files", made.having(), f"ulimit -S -n 256\n{SESSION}"),
    Condition("four jobs at once (make -j4)", made.having(MAKEFLAGS="-j4")),
    _installed("pip's setting user", USER),
    _installed("pip's setting require-hashes", HASHES, PIP_REQUIRE_HASHES="1"),
    _installed("pip's setting only-binary", WHEELS, PIP_ONLY_BINARY=":all:"),
    _installed("pip's setting constraint, of another project", CONSTRAINT),
    _installed("a TMPDIR of 64 KB while packages are installed", "", f"{SMALL_TMPDIR}\nmake setup", MOUNTS),
    _installed("a package without a wheel, LC_ALL=C, an umlaut in the path", "", folder="Büro für Plätze", LC_ALL="C"),
    Condition("all of these settings of pip at once", made.installing(ALL_OF_THEM), f"{SMALL_TMPDIR}\n{SESSION}", inside=MOUNTS),
    Condition("waltz dev twice in a folder with an umlaut", made.having(name="Büro für Plätze"), DEV_TWICE, ends="The second one finds the data."),
    Condition("two workers under a TMPDIR of 120 characters", made.long_tmpdir, TWO_WORKERS, ends="The row is read."),
    Condition("two sessions at once in one clone", made.having(), TWO_AT_ONCE, ends="Both sessions work."),
    Condition("two spark-sql in one folder", made.having(), TWO_CATALOGS, "second", ends="The second one has a catalog of its own."),
    Condition(
        "most of these at once",
        made.everything,
        f"hostname name.invalid\n{SESSION}",
        inside=HOSTNAME,
        short=True,
    ),
    Condition("a space and an umlaut, another Spark, half a Maven cache and no Java at once", made.of_a_spark_user),
    _made_again("a copied clone", made.copied, r"setup: making .venv \(it was made for .*clone\)", short=True),
    _made_again("a moved clone", made.moved, r"setup: making .venv \(it was made for .*clone\)"),
    _made_again("another Python since", made.changed("interpreter", "/usr/bin/python3 3.9.1"), "its Python has changed to"),
    _made_again("a set-up that was killed", made.changed("requirements", ""), r"making .venv \(it is not complete\)"),
    Condition(
        "a copied clone, activated without make setup",
        made.copied_and_activated,
        f"{ACTIVATED}waltz topic --help && spark-submit --version",
        FOREIGN,
        short=True,
        ends="Each command warns that it runs the code of another clone.",
    ),
    _refused("no package index", made.changed("requirements", ""), "make setup", "could not be installed: .*pip: .*No matching", short=False),
    _refused("Python 3.10", made.old_python, "make setup PYTHON=../python3.10", "Python 3.10.12 is too old; install Python 3.11 or newer"),
    _refused("code of another clone", made.other_code, DOCTOR, "not from this folder; run make setup here"),
    _refused("a colon in the path", made.with_a_colon, "make setup", "the path of this folder has a colon"),
    _refused("a user id without a name", made.owned_by(NAMELESS), "make setup", f"user id {NAMELESS} has no entry", AS_NAMELESS),
    _refused("a clone of another user", made.having(), "make setup", "this folder belongs to root", AS_NOBODY),
    _refused("a hard limit of 256 files", made.having(), "ulimit -n 256 && make setup", "a process may open only 256 files"),
    _refused("a jar to fetch without a network", made.truncated_jar, "make setup", "could not be fetched: the name of the repository", NETWORK),
    _refused("a proxy that refuses", made.refusing_proxy, "make setup", "the connection to the repository of jars is refused", short=False),
    _refused("Java without a module", made.java_without_a_module, f"{ACTIVATED}spark-sql -e x", "lacks the module jdk.incubator.vector"),
    _refused("no Java", made.without_java, DOCTOR, "neither JAVA_HOME nor the path has one"),
    _refused("certificates of another cluster", made.having(WALTZ_TLS_KEY="/old.key"), f"{ACTIVATED}waltz dev", "WALTZ_TLS_KEY is set, and this"),
    _refused("settings of another node", made.having(WALTZ_SERVER_COORDINATOR="z:1/w"), f"{ACTIVATED}waltz dev", "WALTZ_SERVER_COORDINATOR is set"),
    _refused("an argument in Latin-1", made.having(), f"{ACTIVATED}spark-submit $'pl\\xe4tze'", "an argument is not UTF-8"),
    _refused("a job under another Spark", made.another_spark, UNDER_ANOTHER, "runs on Spark 4.2, not 3.5.0 from"),
    _refused("a job without Delta's jars", made.having(), NO_JARS, "add the jars of delta-spark", short=False),
)
