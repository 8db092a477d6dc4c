"""A server that speaks the JSON interface of Google Cloud Storage, in memory: as much of it as our clients use.

Run:  python tests/gcs_server.py PORT

The emulators that can be installed do not know `ifGenerationMatch`, on which everything rests.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import google_crc32c


@dataclass(frozen=True)
class Stored:
    """An object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    metadata: dict[str, str] = field(default_factory=dict)
    written: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))

    @property
    def resource(self) -> dict[str, Any]:
        return {
            "kind": "storage#object",
            "bucket": self.bucket,
            "name": self.name,
            "size": str(len(self.data)),
            "generation": str(self.generation),
            "metageneration": "1",
            "metadata": self.metadata,
            "timeCreated": self.written,
            "updated": self.written,
            "md5Hash": base64.b64encode(hashlib.md5(self.data).digest()).decode(),
            "crc32c": base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode(),
        }


class RefusedRequest(Exception):
    """Answered with a status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Store:
    """Buckets, their objects, and uploads that are not whole yet."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, tuple[str, dict[str, Any], dict[str, str], bytearray]] = {}
        self.finished: dict[str, Stored] = {}
        self.numbers = itertools.count(int(datetime.now(UTC).timestamp() * 1e6))

    def bucket(self, name: str) -> dict[str, Stored]:
        if name not in self.buckets:
            raise RefusedRequest(404, f"The specified bucket does not exist: {name}")
        return self.buckets[name]

    def get(self, bucket: str, name: str, query: dict[str, str]) -> Stored:
        found = self.bucket(bucket).get(name)
        if found is None:
            raise RefusedRequest(404, f"No such object: {bucket}/{name}")
        self.check(found, query)
        return found

    def check(self, found: Stored | None, query: dict[str, str]) -> None:
        """Refuses where a condition on the generation, 0 if there is no object, does not hold."""
        generation = str(found.generation if found else 0)
        if query.get("ifGenerationMatch", generation) != generation:
            raise RefusedRequest(412, "At least one of the pre-conditions you specified did not hold.")
        if query.get("ifGenerationNotMatch") == generation:
            raise RefusedRequest(304, "")

    def put(self, bucket: str, given: dict[str, Any], data: bytes, query: dict[str, str]) -> Stored:
        name = given.get("name") or query["name"]
        self.check(self.bucket(bucket).get(name), query)
        made = Stored(bucket, name, data, next(self.numbers), given.get("metadata") or {})
        self.buckets[bucket][name] = made
        return made

    def listing(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        first, last = query.get("startOffset", ""), query.get("endOffset") or None
        most = int(query.get("maxResults") or 1000)
        after = query.get("pageToken", "")
        if delimiter and delimiter in after[len(prefix) :]:  # all of that prefix was told
            after = prefix + after[len(prefix) :].partition(delimiter)[0] + delimiter + "\U0010ffff"
        items: list[dict[str, Any]] = []
        prefixes: list[str] = []
        for name, stored in sorted(self.bucket(bucket).items()):
            if not name.startswith(prefix) or name < first or (last is not None and name >= last):
                continue
            if name <= after:
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                whole = prefix + head + delimiter
                if whole not in prefixes:
                    prefixes.append(whole)
            else:
                items.append(stored.resource)
            if len(items) + len(prefixes) == most:
                return page(items, prefixes) | {"nextPageToken": name}
        return page(items, prefixes)


def page(items: list[dict[str, Any]], prefixes: list[str]) -> dict[str, Any]:
    """A page of a listing; what is empty is not there."""
    told = {"items": items, "prefixes": prefixes}
    return {"kind": "storage#objects", **{key: value for key, value in told.items() if value}}


STORE = Store()


class Handler(BaseHTTPRequestHandler):
    """One request after the other; a body is read before its turn comes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # an answer goes out as one

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        place = parts.path.removeprefix("/upload").removeprefix("/download").removeprefix("/storage/v1/b").strip("/")
        bucket, _, rest = place.partition("/o")
        name = unquote(rest.removeprefix("/"))
        try:
            with STORE.lock:
                status, headers, data = self.act(unquote(bucket), name, query, body)
        except RefusedRequest as error:
            told = {"error": {"code": error.status, "message": str(error)}}
            status, headers, data = error.status, {}, json.dumps(told).encode() if error.status != 304 else b""
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it wants no answer any more
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def act(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.path.startswith("/upload/"):
            return self.upload(bucket, query, body)
        if not bucket and self.command == "POST":
            made = json.loads(body)["name"]
            STORE.buckets.setdefault(made, {})
            return as_json({"kind": "storage#bucket", "name": made})
        if not name and "/o" not in self.path:
            STORE.bucket(bucket)
            return as_json({"kind": "storage#bucket", "name": bucket})
        if not name:
            return as_json(STORE.listing(bucket, query))
        if self.command == "DELETE":
            STORE.get(bucket, name, query)
            del STORE.buckets[bucket][name]
            return 204, {}, b""
        if "/rewriteTo/b/" in name:
            source, _, target = name.partition("/rewriteTo/b/")
            there, _, new = target.partition("/o/")
            found = STORE.get(bucket, source, {})
            made = STORE.put(there, {"name": new, "metadata": found.metadata}, found.data, query)
            return as_json({"done": True, "resource": made.resource})
        found = STORE.get(bucket, name, query)
        if query.get("alt") != "media":
            return as_json(found.resource)
        return self.content(found)

    def content(self, found: Stored) -> tuple[int, dict[str, str], bytes]:
        size = len(found.data)
        headers = {"x-goog-generation": str(found.generation), "x-goog-stored-content-length": str(size)}
        asked = self.headers.get("Range")
        if asked is None:
            return 200, headers, found.data
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = (int(first), int(last or size - 1)) if first else (max(0, size - int(last)), size - 1)
        if start >= size:
            raise RefusedRequest(416, "The requested range cannot be satisfied.")
        end = min(end, size - 1)
        return 206, {**headers, "Content-Range": f"bytes {start}-{end}/{size}"}, found.data[start : end + 1]

    def upload(self, bucket: str, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if "upload_id" in query:
            return self.proceed(query["upload_id"], body)
        if query["uploadType"] == "media":
            return as_json(STORE.put(bucket, {}, body, query).resource)
        if query["uploadType"] == "multipart":
            described, data = two_parts(body)
            return as_json(STORE.put(bucket, json.loads(described), data, query).resource)
        STORE.check(STORE.bucket(bucket).get(query["name"]), query)
        number = str(next(STORE.numbers))
        STORE.uploads[number] = (bucket, json.loads(body), query, bytearray())
        address = (
            f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
        )
        return 200, {"Location": address}, b""

    def proceed(self, number: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if number in STORE.finished and self.command != "DELETE":
            return as_json(STORE.finished[number].resource)
        if number not in STORE.uploads:
            raise RefusedRequest(404, "No such upload")
        if self.command == "DELETE":
            del STORE.uploads[number]
            return 499, {}, b""
        bucket, given, query, held = STORE.uploads[number]
        sent, _, whole = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        begin = int(sent.partition("-")[0]) if sent != "*" else len(held)
        if begin <= len(held):  # a part may come again
            held += body[len(held) - begin :]
        if whole == "*" or len(held) < int(whole):
            return 308, {"Range": f"bytes=0-{len(held) - 1}"} if held else {}, b""
        made = STORE.put(bucket, given, bytes(held), query)
        del STORE.uploads[number]
        STORE.finished[number] = made
        return as_json(made.resource)


def two_parts(body: bytes) -> tuple[bytes, bytes]:
    """What the two parts of a body hold, byte for byte."""
    boundary, _, rest = body.partition(b"\n")
    end = b"\r\n" if boundary.endswith(b"\r") else b"\n"
    mark = end + boundary.strip()
    first, _, rest = rest.partition(mark)
    second = rest.partition(end)[2].rpartition(mark)[0]
    return first.partition(end + end)[2], second.partition(end + end)[2]


def as_json(value: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.daemon_threads = True
    server.serve_forever()
