"""Python imports this before anything else: ends the process, if the test laid a bomb, before it can claim its step."""

import os
import signal
from pathlib import Path

if bombs := sorted(Path(os.environ["PONENTE_FAULT_TRACE"]).glob("bomb-*")):
    bombs[0].unlink()
    if bombs[0].name.startswith("bomb-exit"):
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)
