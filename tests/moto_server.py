"""A server that speaks S3, in memory: moto's, which takes one request at a time.

Run:  python tests/s3_server.py PORT

Moto looks whether an object is there and then puts it, so that of two requests at once both may create it, which no
real store allows.
"""

import io
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

moto = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()


def one_at_a_time(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Reads a request whole before its turn comes: a client that is stopped in the middle must hold up nobody."""
    given, length = environment["wsgi.input"], environment.get("CONTENT_LENGTH")
    is_chunked = "chunked" in environment.get("HTTP_TRANSFER_ENCODING", "").lower()
    environment["wsgi.input"] = io.BytesIO(given.read() if is_chunked else given.read(int(length or 0)))
    with lock:
        return list(moto(environment, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
