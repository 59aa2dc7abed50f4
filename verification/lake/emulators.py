"""Emulators of Azure's and Google's stores, on loopback, for tests and races: Azurite of npm, and `fake-gcs-server`, a module of Go.

An emulator on the `PATH` is used; otherwise it is fetched into a directory that is given. Azurite before 3.37 ignores where a listing begins
(`startFrom`), and `deltalake` then refuses each append after the second one.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from verification.lake.place import Place
from waltz_delta.engine.stores import file_system

__all__ = ["ACCOUNT", "CREDENTIALS", "EMULATORS", "KEY", "azure_place", "emulated", "google_place", "lacking"]

ROOT = Path(__file__).resolve().parents[2]
AZURITE, FAKE_GCS = "azurite@3.37.0", "github.com/fsouza/fake-gcs-server@v1.56.1"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of each Azurite: Azure's documentation names it."""
CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS"
EMULATORS = {"azure": ("azurite-blob", "npm"), "google": ("fake-gcs-server", "go")}
"""Stores: the program, and what fetches it."""
FETCHED_WITHIN_S, STARTED_WITHIN_S = 540.0, 60.0


def lacking(store: str) -> str | None:
    """What is missing for this store's emulator; None if it can be used."""
    program, fetcher = EMULATORS[store]
    return None if shutil.which(program) or shutil.which(fetcher) else f"neither {program} nor {fetcher}"


@contextmanager
def emulated(store: str) -> Iterator[Place]:
    with azure_place() if store == "azure" else google_place() as place:
        yield place


def _azurite(directory: Path) -> str:
    if found := shutil.which("azurite-blob"):
        return found
    _run(["npm", "install", "--no-fund", "--no-audit", "--prefix", str(directory), AZURITE], {})
    return str(directory / "node_modules" / ".bin" / "azurite-blob")


def _fake_gcs(directory: Path) -> str:
    if found := shutil.which("fake-gcs-server"):
        return found
    _run(["go", "install", FAKE_GCS], {"GOBIN": str(directory)})
    return str(directory / "fake-gcs-server")


@contextmanager
def azure_place() -> Iterator[Place]:
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="waltz-azurite-") as directory:
        command = [_azurite(Path(directory)), "--blobPort", str(port), "--location", directory, "--silent", "--disableTelemetry"]
        # pyarrow asks for a newer version of the service than the emulator knows.
        with _served([*command, "--skipApiVersionCheck"], port):
            storage = {
                "AZURE_STORAGE_ACCOUNT_KEY": KEY,
                "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
            }
            place = Place(f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/races", storage)
            files, root = file_system(place.location, place.storage)
            files.create_dir(root.partition("/")[0])
            yield place


@contextmanager
def google_place(*, conditional: bool = True) -> Iterator[Place]:
    """Sets `GOOGLE_APPLICATION_CREDENTIALS` meanwhile, also for processes that are started: the key of a made up account, which signs by itself."""
    port, before = _free_port(), os.environ.get(CREDENTIALS)
    with tempfile.TemporaryDirectory(prefix="waltz-gcs-") as directory, _front(port, conditional) as address:
        command = [_fake_gcs(Path(directory)), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        with _served([*command, "-log-level", "error", "-public-host", address, "-external-url", f"http://{address}"], port):
            _create_bucket(port)
            os.environ[CREDENTIALS] = str(_account(Path(directory)))
            try:
                yield Place("gs://lake/races", {"GOOGLE_BASE_URL": f"http://{address}"})
            finally:
                del os.environ[CREDENTIALS]
                if before is not None:
                    os.environ[CREDENTIALS] = before


@contextmanager
def _front(port: int, conditional: bool) -> Iterator[str]:
    """The address of the XML API."""
    command = [sys.executable, "-m", "verification.lake.google_xml", str(port), *([] if conditional else ["unconditional"])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


def _account(directory: Path) -> Path:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    account = {"type": "service_account", "project_id": "lake", "private_key_id": "1", "private_key": text}
    path = directory / "account.json"
    path.write_text(json.dumps({**account, "client_email": "lake@lake.iam.gserviceaccount.com", "client_id": "1", "token_uri": "https://localhost"}))
    return path


def _create_bucket(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STARTED_WITHIN_S)
    with closing(connection):
        connection.request("POST", "/storage/v1/b?project=lake", body=json.dumps({"name": "lake"}), headers={"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"no bucket: {answer.status} {answer.read()!r}")


def _run(command: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


@contextmanager
def _served(command: Sequence[str], port: int) -> Iterator[None]:
    """Runs a server until the block ends. Raises `RuntimeError` if it does not answer."""
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + STARTED_WITHIN_S
            while not _answers(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(f"{command[0]} does not serve: {output.read().decode(errors='replace')[-500:]}")
                time.sleep(0.1)
            yield
        finally:
            server.terminate()


def _answers(port: int) -> bool:
    with closing(socket.socket()) as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
