"""Programs on a cluster's own machines, started from a laptop: through Ray's job server.

The working tree travels, without what git ignores, and with it the lock; the program runs on the cluster's first
machine, and its steps wherever there is room.
"""

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from ponente.cluster.address import CLUSTER_VARIABLE
from ponente.cluster.ray.connection import TOKEN_ADVICE
from ponente.config.errors import RefusedError
from ponente.store.redaction import SECRETS_VARIABLE

logger = logging.getLogger(__name__)

_LEFT_AT_HOME = [".git", ".venv", "**/__pycache__", "ponente-runs"]
_OPEN = ("PONENTE_", "JAX_", "XLA_", "AWS_ENDPOINT", "AWS_REGION", "AWS_DEFAULT_REGION")  # variables without secrets
_FAILED = 1


@dataclass(frozen=True)
class JobView:
    """A job as its server tells of it."""

    name: str
    status: str
    entrypoint: str
    exit_code: int | None
    message: str

    @property
    def is_over(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class Jobs:
    """The jobs of one cluster; `http://HEAD:8265`."""

    def __init__(self, address: str) -> None:
        logging.getLogger("ray").setLevel(logging.WARNING)
        if not address.startswith(("http://", "https://")):
            raise RefusedError(
                f"found the address {address!r}; needed that of the cluster's job server: http://HEAD:8265. Give "
                "--address."
            )
        try:
            self._client = JobSubmissionClient(address)
        except AuthenticationError as error:
            raise RefusedError(f"found a job server at {address} that asks for a token; {TOKEN_ADVICE}") from error
        except (ConnectionError, RuntimeError) as error:
            raise RefusedError(
                f"found no job server at {address} ({str(error).strip().partition(chr(10))[0]}); needed that of a Ray "
                "cluster, whose dashboard runs: http://HEAD:8265. Give --address."
            ) from error

    def submit(self, command: Sequence[str], variables: Mapping[str, str], tree: Path) -> str:
        """Ships the tree and starts the command in it; returns the job's name."""
        secrets = [name for name in variables if not name.startswith(_OPEN)]
        environment: dict[str, Any] = {
            "working_dir": str(tree),
            "excludes": _LEFT_AT_HOME,
            "env_vars": {CLUSTER_VARIABLE: "auto", **variables, SECRETS_VARIABLE: ",".join(secrets)},
        }
        return self._client.submit_job(entrypoint=shlex.join(command), runtime_env=environment)

    def follow(self, name: str, write: Callable[[str], object]) -> int:
        """Writes the job's log until it ends; returns its exit code."""

        async def carry() -> None:
            async for lines in self._client.tail_job_logs(name):
                write(lines)

        try:
            asyncio.run(carry())
        except RuntimeError as error:
            logger.warning("the log of %s was cut off (%s); waiting for its end", name, error)
        while not (job := self.job(name)).is_over:
            time.sleep(1.0)
        if job.status == JobStatus.SUCCEEDED:
            return 0
        if job.exit_code is None:
            logger.error("job %s: %s", name, job.message)
        return job.exit_code or _FAILED

    def job(self, name: str) -> JobView:
        """One job; a name that the server does not know is refused."""
        try:
            details = self._client.get_job_info(name)
        except RuntimeError as error:
            known = ", ".join(job.name for job in self.jobs()) or "none"
            raise RefusedError(f"found no job {name!r}; needed one of: {known}. See `ponente cluster list`.") from error
        return _view(details)

    def jobs(self) -> list[JobView]:
        """All jobs, the oldest first."""
        found = [one for one in self._client.list_jobs() if one.submission_id]
        return [_view(one) for one in sorted(found, key=lambda one: one.start_time or 0)]

    def log(self, name: str) -> str:
        """What a job has said so far."""
        self.job(name)
        return str(self._client.get_job_logs(name))

    def stop(self, name: str) -> bool:
        """Asks a job to end; False where it has ended."""
        self.job(name)
        return bool(self._client.stop_job(name))


def _view(details: Any) -> JobView:
    return JobView(
        name=details.submission_id,
        status=str(details.status.value),
        entrypoint=details.entrypoint,
        exit_code=details.driver_exit_code,
        message=details.message or "",
    )
