"""How gcsfs is to make its filesystem."""

import os
from typing import Any

from aiohttp import ClientTimeout


def options() -> dict[str, Any]:
    """It would wait for an answer for ever; and look for credentials in the network where another server is named."""
    timeout = ClientTimeout(sock_connect=10, sock_read=60)
    anonymous = {"token": "anon"} if os.environ.get("STORAGE_EMULATOR_HOST") else {}
    return {"requests_timeout": timeout, **anonymous}
