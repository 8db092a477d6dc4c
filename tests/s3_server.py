"""A server that speaks S3, in memory: moto's, which takes one request at a time.

Run:  python tests/s3_server.py PORT

Moto looks whether an object is there and then puts it, so that of two requests at once both may create it, which no
real store allows.
"""

import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

moto = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()


def one_at_a_time(environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with lock:
        return list(moto(environment, start_response))


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
