"""Fixtures for the tests of cluster/. The modules of `tasks/` are imported by their file's name."""

import sys
from pathlib import Path

TASKS = Path(__file__).parent / "tasks"
sys.path[:0] = [str(TASKS)] if str(TASKS) not in sys.path else []
