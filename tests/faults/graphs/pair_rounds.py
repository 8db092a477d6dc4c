"""Drives the small diamond in this process, once for each prefix that comes on standard input; answers with exit codes.

Two of these are kept in step by a test, so that fifty races cost no fifty starts.
"""

import os
import sys

import pair

from ponente.executor import ExecutorOptions, run_steps

if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        prefix, os.environ["PONENTE_FAULT_TRACE"] = line.split()
        outcome = run_steps([pair.bottom], ExecutorOptions(prefix=prefix, launcher="driver"))
        sys.stdout.write(f"{outcome.exit_code}\n")
        sys.stdout.flush()
