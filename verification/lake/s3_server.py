"""An S3 server in memory, on loopback, for tests: what pyarrow and `deltalake` ask of one, and faults on request. Verifies no signatures.

A request can be slow, be refused with 503 or 403, or be executed and then answered with an error. `conditional=False` makes it a server that ignores
`If-None-Match`, as some do: two writers can then create one version of a table.

Source: Amazon's API reference of S3, for `PutObject`, `GetObject`, `HeadObject`, `ListObjectsV2`, `DeleteObject(s)` and multipart uploads.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

__all__ = ["Fault", "S3Server"]

BUCKET = "lake"
FIRST_COMMIT_S, SECOND_COMMIT_S = 0.1, 0.5
"""How long a server without conditions waits before it stores a commit of a table, and another one of the same version."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request. `executed`: it takes effect, although the answer is an error."""

    status: int = 503
    code: str = "SlowDown"
    delay_s: float = 0.0
    executed: bool = False


class S3Server:
    """Serves one bucket, `lake`, from `__enter__` to `__exit__`."""

    def __init__(self, *, conditional: bool = True) -> None:
        self.conditional = conditional
        self.bucket_exists = True
        self.objects: dict[str, bytes] = {}
        self.written_s: dict[str, float] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.fault: Callable[[str, str], Fault | None] = lambda method, key: None
        """Called with the method and the key of each request."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def storage(self) -> dict[str, str]:
        """Storage options for the server."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_address[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, key: str, content: bytes, *, only_new: bool) -> bool:
        """Whether it was stored."""
        with self.lock:
            if only_new and self.conditional and key in self.objects:
                return False
            self.objects[key] = content
            self.written_s[key] = time.time()
            return True


class _Handler(BaseHTTPRequestHandler):
    store: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Otherwise each body waits for the acknowledgment of its head, which a client delays by 40 ms."""

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None: ...

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that was killed
            super().handle()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = _unchunked(self) if self.headers.get("Content-Length") or self.headers.get("Transfer-Encoding") else b""
        fault = self.store.fault(self.command, key)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if bucket != BUCKET or not self.store.bucket_exists:
            self._error(404, "NoSuchBucket")
        elif fault is None or fault.status == 200:
            self._execute(key, query, body)
        else:
            if fault.executed:
                self._execute(key, query, body, answer=False)
            self._error(fault.status, fault.code)

    def _execute(self, key: str, query: dict[str, str], body: bytes, *, answer: bool = True) -> None:
        status, content, headers = self._outcome(key, query, body)
        if answer:
            self._answer(status, content, headers)

    def _outcome(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        store = self.store
        if self.command == "PUT" and "partNumber" in query:
            store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, b"", {"ETag": _tag(body)}
        if self.command == "PUT":
            if not store.put(key, body, only_new=self.headers.get("If-None-Match") == "*"):
                return 412, _xml_error("PreconditionFailed"), {}
            return 200, b"", {"ETag": _tag(body)}
        if self.command == "POST" and "uploads" in query:
            upload = uuid.uuid4().hex
            store.uploads[upload] = {}
            return 200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(), {}
        if self.command == "POST" and "uploadId" in query:
            parts = store.uploads.pop(query["uploadId"], None)
            if parts is None:  # completed before: pyarrow sends the request again after one that was refused and then repeated
                return 404, _xml_error("NoSuchUpload"), {}
            store.put(key, b"".join(parts[number] for number in sorted(parts)), only_new=False)
            return 200, b'<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>', {}
        if self.command == "POST" and "delete" in query:
            keys = [found.text or "" for found in ElementTree.fromstring(body).iter() if found.tag.rpartition("}")[2] == "Key"]
            for each in keys:
                store.objects.pop(each, None)
            deleted = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {}
        if self.command == "DELETE":
            store.objects.pop(key, None)
            return 204, b"", {}
        if not key:
            return 200, self._listing(query), {}
        return self._object(key)

    def _object(self, key: str) -> tuple[int, bytes, dict[str, str]]:
        content = self.store.objects.get(key)
        if content is None:
            return 404, _xml_error("NoSuchKey"), {}
        headers = {"ETag": _tag(content), "Last-Modified": formatdate(self.store.written_s[key], usegmt=True), "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            return 200, content, headers
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(content) - int(last))
        end = min(len(content), int(last) + 1) if first and last else len(content)
        return 206, content[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}

    def _listing(self, query: dict[str, str]) -> bytes:
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", "")
        with self.store.lock:
            keys = sorted(key for key in self.store.objects if key.startswith(prefix) and key > after)
            sizes = {key: len(self.store.objects[key]) for key in keys}
        rest = {key: key[len(prefix) :] for key in keys}
        inner = [key for key in keys if delimiter and delimiter in rest[key]]
        folders = sorted({prefix + rest[key].split(delimiter)[0] + delimiter for key in inner})
        found = [key for key in keys if key not in set(inner)]
        at = {key: datetime.fromtimestamp(self.store.written_s[key], UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z") for key in found}
        inside = "".join(
            f'<Contents><Key>{escape(key)}</Key><LastModified>{at[key]}</LastModified><ETag>"x"</ETag><Size>{sizes[key]}</Size></Contents>'
            for key in found
        )
        shared = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount><MaxKeys>1000</MaxKeys>"
        return f"<ListBucketResult>{head}<IsTruncated>false</IsTruncated>{inside}{shared}</ListBucketResult>".encode()

    def _error(self, status: int, code: str) -> None:
        self._answer(status, _xml_error(code), {})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):  # a client that gave up
            self.wfile.write(b"" if self.command == "HEAD" else content)


def _unchunked(request: BaseHTTPRequestHandler) -> bytes:
    """The body, without the chunks of `Transfer-Encoding` and of `aws-chunked`."""
    if request.headers.get("Transfer-Encoding", "").lower() == "chunked":
        body = b""
        while size := int(request.rfile.readline().split(b";")[0], 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        while request.rfile.readline().strip():
            pass
    else:
        body = request.rfile.read(int(request.headers["Content-Length"]))
    if "aws-chunked" not in request.headers.get("Content-Encoding", "") and not request.headers.get("x-amz-decoded-content-length"):
        return body
    found, rest = b"", body
    while rest:
        head, _, rest = rest.partition(b"\r\n")
        size = int(head.split(b";")[0], 16)
        if size == 0:
            break
        found, rest = found + rest[:size], rest[size + 2 :]
    return found


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml_error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _overtaken() -> Callable[[str, str], Fault | None]:
    """Two commits of one version meet, and the second one arrives when later versions are there."""
    begun: set[str] = set()

    def fault(method: str, key: str) -> Fault | None:
        if method != "PUT" or not key.endswith(".json"):
            return None
        delay_s = SECOND_COMMIT_S if key in begun else FIRST_COMMIT_S
        begun.add(key)
        return Fault(200, "", delay_s=delay_s)

    return fault


def main() -> int:
    """Serves until standard input ends. Prints the storage options first. With the argument `unconditional`, it ignores conditions."""
    with S3Server(conditional=sys.argv[1:] != ["unconditional"]) as server:
        if not server.conditional:
            server.fault = _overtaken()
        print(json.dumps(server.storage), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
