"""The modules of `scripts/` are imported by their file's name, here and in the processes of steps."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
sys.path[:0] = [str(SCRIPTS)] if str(SCRIPTS) not in sys.path else []
