"""Fetches jars once: Delta's into the folder that `conf/spark-defaults.conf` names, and with `kafka` those that `make bench-kafka` compares with.

The lists `conf/*-jars.sha256` name each jar and its SHA-256. Ivy, which comes with Spark, fetches exactly those, from its own default repository and
into a cache of its own: jars in the caches of the user's Maven or Ivy are often incomplete. The folder gets its name only when it is complete, so an
interrupted run leaves no result. Run by `make`, in the project's folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltz_log.child_environment import java_environment, java_proxies
from waltz_log.cli.checks import DELTA_JARS, DELTA_PINS, read_pins, unfit_jars
from waltz_log.coordination.java import JavaMissing, find_java

TIMEOUT_S = 900
PASSWORD = "changeit"
"""Of a file of public certificates, which Java does not read without one."""

BYTES_NEEDED = 200_000_000

SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""

CAUSES = (
    ("No space left on device", "no space on the disk; free 200 MB"),
    (r"UnknownHostException|Host \S+ not found", "the name of the repository of jars does not resolve; check the network and its name server"),
    ("PKIX path", "Java does not trust the repository's certificate, which a proxy may replace (JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=…)"),
    ("Connection refused", "the connection to the repository of jars is refused; check the network and the proxy"),
    ("timed out", "the repository of jars does not answer; check the network and the proxy"),
    ("407 Proxy", "the proxy wants a name and password"),
)
"""What Ivy prints, and what it means. Everything else is quoted."""


@dataclass(frozen=True)
class Wanted:
    """`whose` jars, from the list `pins` into `folder`; `again`: the command to repeat."""

    whose: str
    pins: Path
    folder: Path
    again: str


DELTA = Wanted("Delta's", DELTA_PINS, DELTA_JARS, "make setup")
KAFKA = Wanted("Kafka's", Path("conf/kafka-jars.sha256"), Path(".cache/kafka-jars"), "make bench-kafka")


def cause(output: str) -> str:
    """The reason why Ivy failed, in one sentence, from what it printed."""
    known = next((meaning for sign, meaning in CAUSES if re.search(sign, output)), None)
    if known is not None:
        return known
    lines = [line.strip(" :\t") for line in output.splitlines() if re.search(r"not found|FAILED|ERROR|[Ee]rror|[Ee]xception", line)]
    return f"Ivy says: {lines[0]}" if lines else "Ivy says nothing about it"


def description(pins: Mapping[str, tuple[str, str]]) -> str:
    """The file that asks Ivy for each jar, and for nothing that it depends on."""
    rows = []
    for coordinates, _ in pins.values():
        group, artifact, version = coordinates.split(":")
        rows.append(f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="false" conf="default->master"/>')
    return f'<ivy-module version="2.0"><info organisation="waltz" module="jars"/><dependencies>{"".join(rows)}</dependencies></ivy-module>\n'


def fetch(project: Path, wanted: Wanted, environment: Mapping[str, str] = os.environ) -> str | None:
    """The error in one sentence, or None."""
    target = project / wanted.folder
    pins = read_pins(project / wanted.pins)
    if not unfit_jars(target, pins):
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"setup: fetching {wanted.whose} jars (once)", flush=True)
    if shutil.disk_usage(target.parent).free < BYTES_NEEDED:
        return f"no space for {wanted.whose} jars; free {BYTES_NEEDED // 1_000_000} MB"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="resolving-") as folder:
        work = Path(folder)
        log = target.parent / "resolving.log"
        try:
            done = _resolve(work, description(pins), log, environment)
            if done != 0 and "PKIX path" in log.read_text(errors="replace"):
                done = _resolve(work, description(pins), log, environment, systems_authorities(work, environment))
        except JavaMissing as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return f"{wanted.whose} jars did not arrive within {TIMEOUT_S // 60} minutes; check the network (log: {log})"
        jars = work / "jars"
        wrong = unfit_jars(jars, pins)
        if done != 0 and wrong:
            return f"{wanted.whose} jars could not be fetched: {cause(log.read_text(errors='replace'))} (log: {log})"
        if wrong:
            return f"{wanted.whose} jars arrived changed: {wrong[0]}; a proxy or a mirror may have replaced it (log: {log})"
        if target.exists():
            shutil.rmtree(target)
        jars.rename(target)
    log.unlink()
    return None


def systems_authorities(work: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Options that let Java trust what pip and OpenSSL trust here, such as the authority of a proxy; each Java has a list of its own."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

    named = (environment.get(name) for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"))
    bundle = next(filter(None, named), ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    with warnings.catch_warnings(action="ignore"):  # some bundles hold old authorities
        found = x509.load_pem_x509_certificates(Path(bundle).read_bytes())
    trusted = [PKCS12Certificate(each, str(at).encode()) for at, each in enumerate(found)]
    store = work / "authorities.p12"
    store.write_bytes(serialize_java_truststore(trusted, BestAvailableEncryption(PASSWORD.encode())))
    return (f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12", f"-Djavax.net.ssl.trustStorePassword={PASSWORD}")


def _resolve(work: Path, asked: str, log: Path, environment: Mapping[str, str], options: Sequence[str] = ()) -> int:
    """Runs Ivy, with homes of its own: Java gets the user's from the password file, not from HOME. Returns its exit code."""
    java, _ = find_java(environment)
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (ivy,) = Path(spec.submodule_search_locations[0], "jars").glob("ivy-*.jar")
    (work / "settings.xml").write_text(SETTINGS)
    (work / "ivy.xml").write_text(asked)
    command = [
        str(java),
        f"-Duser.home={work}",
        f"-Divy.default.ivy.user.dir={work}",
        f"-Djava.io.tmpdir={work}",
        *java_proxies(environment),
        *options,
    ]
    command += ["-jar", str(ivy), "-settings", "settings.xml", "-cache", str(work / "cache"), "-ivy", "ivy.xml", "-types", "jar", "bundle"]
    command += ["-retrieve", "jars/[organisation]_[artifact]-[revision].[ext]"]
    with log.open("wb") as output:
        done = subprocess.run(
            command,
            cwd=work,
            env=java_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=TIMEOUT_S,
            check=False,
        )
    return done.returncode


def main() -> int:
    wanted = KAFKA if sys.argv[1:] == ["kafka"] else DELTA
    try:
        problem = fetch(Path.cwd(), wanted)
    except OSError as error:
        problem = f"{wanted.whose} jars could not be kept: {error.strerror} at {error.filename}"
    if problem is not None:
        print(f"{wanted.again.removeprefix('make ')}: {problem}; then run {wanted.again} again", file=sys.stderr)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
