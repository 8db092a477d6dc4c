"""100 chains of 10 steps in redun: SQLite in the current folder, no log. Writes under ./out.

check_valid="shallow" lets redun look at the 1,000 files alone on a re-run, not also at every call that led to them:
several times faster than its default. Its own Scheduler is called, which starts faster than the redun command.
"""

import logging

from redun import File, Scheduler, task
from redun.config import Config

redun_namespace = "chains"


@task()
def step(path: str, parent: File | None) -> File:
    file = File(path)
    file.write("done\n")
    return file


@task(check_valid="shallow")
def chains() -> list[File]:
    files = []
    for chain in range(100):
        parent = None
        for index in range(10):
            parent = step(f"out/chain-{chain}/step-{index}", parent)
            files.append(parent)
    return files


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    scheduler = Scheduler(config=Config({"backend": {"db_uri": "sqlite:///redun.db"}}))
    scheduler.load()
    scheduler.run(chains())
