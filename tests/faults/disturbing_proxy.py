"""A proxy between a client and a store that loses, delays and doubles some of its requests.

In: where the store is, and which share of requests is disturbed. Out: an address. What is lost is lost before it
arrives, or after it was done, so that its answer alone is missing.
"""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FATES = ("lost before", "lost after", "late", "twice")


@contextmanager
def disturbing(store: str, share: float, seed: int) -> Iterator[tuple[str, "Counter[str]"]]:
    """The address of the proxy, and how often each fate has struck."""
    host, draw, lock, struck = urlsplit(store).netloc, random.Random(seed), threading.Lock(), Counter[str]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self._body()
            with lock:
                fate = draw.choice(FATES) if draw.random() < share else "passed"
                struck[fate] += 1
            if fate == "lost before":
                self.close_connection = True
                return
            if fate == "late":
                time.sleep(0.5)
            if fate == "twice":
                self._forward(body)
            status, headers, data = self._forward(body)
            if fate == "lost after":
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                    self.send_header(name, value)
            length = dict((name.lower(), value) for name, value in headers).get("content-length", "0")
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(host, timeout=60)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
                headers["Content-Length"] = str(len(body))
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", struck
    finally:
        server.shutdown()
        server.server_close()
