"""Google's XML API in front of `fake-gcs-server`, for tests: `deltalake` asks for it, and the emulator has the JSON API alone.

Requests for an object's content, and all of the JSON API, pass unchanged. Two requests are translated, so that the emulator itself checks a condition
and lists from an offset:

| XML API | JSON API |
|---|---|
| `PUT /bucket/name`, `x-goog-if-generation-match: n` | insert with `uploadType=media`, `ifGenerationMatch=n` |
| `GET /bucket?list-type=2&prefix=&start-after=name` | list with `prefix`, `startOffset=name`; without that name, which only JSON includes |

    python -m verification.lake.google_xml PORT [unconditional]

`PORT`: the emulator's. It prints its own, and serves until standard input ends. It is a process of its own because pyarrow and `deltalake` hold
Python's lock during some requests. With `unconditional` it is a store that ignores conditions. Uploads in parts are answered with 501; `deltalake`
uses them for checkpoints above 10 MB.

Source: Google's reference of Cloud Storage, "XML API" (PUT Object, List Objects) and "JSON API" (Objects: insert, list).
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

_OF_JSON = ("storage", "upload", "download", "batch")
_OF_CONNECTION = ("connection", "content-length", "transfer-encoding")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    behind: int
    conditional: bool
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        bucket, _, name = url.path.lstrip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        if bucket in _OF_JSON:
            self._pass(body)
        elif self.command in ("POST", "PUT") and ("uploads" in query or "uploadId" in query):
            self._answer(501, b"uploads in parts", {})
        elif self.command == "PUT" and name:
            self._insert(bucket, unquote(name), body)
        elif self.command == "GET" and not name and query.get("list-type") == "2":
            self._list(bucket, query)
        else:
            self._pass(body)

    do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = do_GET

    def log_message(self, *_: Any) -> None: ...

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that was killed
            super().handle()

    def _insert(self, bucket: str, name: str, body: bytes) -> None:
        asked = {"uploadType": "media", "name": name}
        condition = self.headers.get("x-goog-if-generation-match")
        if condition is not None and self.conditional:
            asked["ifGenerationMatch"] = condition
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(asked)}"
        status, content, _ = self._asked("POST", path, body, {"Content-Type": "application/octet-stream"})
        if status != 200:
            self._answer(status, content, {})
            return
        found = json.loads(content)
        self._answer(200, b"", {"ETag": f'"{found["etag"]}"', "x-goog-generation": found["generation"]})

    def _list(self, bucket: str, query: Mapping[str, str]) -> None:
        after = query.get("start-after", "")
        asked = {name: query[name] for name in ("prefix", "delimiter") if name in query} | ({"startOffset": after} if after else {})
        status, content, _ = self._asked("GET", f"/storage/v1/b/{bucket}/o?{urlencode(asked)}", b"", {})
        if status != 200:
            self._answer(status, content, {})
            return
        found = json.loads(content)
        inside = "".join(
            f"<Contents><Key>{escape(each['name'])}</Key><LastModified>{each['updated']}</LastModified><ETag>{each['etag']}</ETag>"
            f"<Size>{each['size']}</Size></Contents>"
            for each in found.get("items", ())
            if each["name"] != after
        )
        shared = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in found.get("prefixes", ()))
        self._answer(200, f"<ListBucketResult><Name>{bucket}</Name>{inside}{shared}</ListBucketResult>".encode(), {})

    def _pass(self, body: bytes) -> None:
        status, content, headers = self._asked(self.command, self.path, body, dict(self.headers))
        self._answer(status, content, headers)

    def _asked(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=60)
        try:
            connection.request(
                method, path, body=body, headers={name: value for name, value in headers.items() if name.lower() not in _OF_CONNECTION}
            )
            answer = connection.getresponse()
            content = answer.read()
        except (http.client.HTTPException, OSError) as error:  # the emulator ended
            return 503, repr(error).encode(), {}
        finally:
            connection.close()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_CONNECTION or method == "HEAD"}
        return answer.status, content, kept

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(ConnectionError):  # a client that gave up
            self.wfile.write(b"" if self.command == "HEAD" else content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body


def main() -> int:
    handler = type("Handler", (_Handler,), {"behind": int(sys.argv[1]), "conditional": sys.argv[2:] != ["unconditional"]})
    with _Server(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
