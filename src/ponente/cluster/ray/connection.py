"""The connection of a process to a Ray cluster, and what it hands on to the processes that it starts there."""

import contextlib
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import ray

from ponente.cluster.address import CLUSTER_VARIABLE, RUNTIME_VARIABLE, STEP_VARIABLE
from ponente.config.errors import RefusedError

LOCAL = "local"
_AUTO = "auto"
_PATIENCE_SECONDS = 10.0
_NAMESPACE = "ponente"
_HANDED_ON = (  # not JAX_: machines differ
    *("PONENTE_", "AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "GCSFS_"),
    *("HF_", "HUGGING_FACE_", "WANDB_"),
)
TOKEN_ADVICE = (
    "needed the token that it was started with. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token."
)
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Joins the cluster at `address` (as `ray.init` takes it: `auto`, HOST:PORT); `local` starts one for the block."""
    if ray.is_initialized():
        yield
        return
    connect(address)
    before = os.environ.get(CLUSTER_VARIABLE)
    os.environ[CLUSTER_VARIABLE] = ray.get_runtime_context().gcs_address
    try:
        yield
    finally:
        os.environ.pop(CLUSTER_VARIABLE)
        if before is not None:
            os.environ[CLUSTER_VARIABLE] = before
        ray.shutdown()


def connect(address: str) -> None:
    """Joins a cluster until this process ends."""
    if ray.is_initialized():
        return
    if address == _AUTO:  # a job knows its cluster; else Ray takes the one that was started last on this machine
        address = os.environ.get("RAY_ADDRESS") or _AUTO
    _check_address(address)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    given = os.environ.get(RUNTIME_VARIABLE)
    environment = json.loads(given) if given else None
    options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    try:
        with _own_signals():
            ray.init(
                address=address,
                namespace=_NAMESPACE,
                log_to_driver=given is not None,  # in a step, whose log takes what its workers elsewhere print
                logging_level=logging.WARNING,
                runtime_env=environment,
                **options,
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps what this process does on SIGTERM: Ray would end it as if it had failed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_address(address: str) -> None:
    """Refuses at once what Ray would try for minutes."""
    if "://" in address:
        raise RefusedError(
            f"found the address {address!r}; needed one that a machine of the cluster has: HOST:6379, or auto. From "
            "outside, run the command there: ponente cluster submit -- COMMAND"
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE_SECONDS).close()
        except OSError as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> RefusedError:
    if re.search(r"(?i)authent|auth.?token", str(error)):
        return RefusedError(f"found a Ray cluster at {address!r} that does not let us in; {TOKEN_ADVICE}")
    return RefusedError(
        f"found no Ray cluster at {address!r} ({str(error).strip().partition(chr(10))[0]}); needed the address of "
        "one that runs: HOST:6379, auto on one of its machines, or local to start one here"
    )


def handed_on() -> dict[str, str]:
    """The variables of this process that those on other machines need as well: places, credentials, settings."""
    own = (CLUSTER_VARIABLE, RUNTIME_VARIABLE)
    of_step = os.environ.get(STEP_VARIABLE, "").split(",")
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_HANDED_ON) or name in of_step) and name not in own
    }


def own_paths() -> list[str]:
    """Where this process finds modules that are not installed: the script's folder, the project's sources."""
    roots = tuple(os.path.realpath(root) + os.sep for root in {sys.prefix, sys.base_prefix})
    return [path for path in sys.path if path and not (os.path.realpath(path) + os.sep).startswith(roots)]


def membership() -> dict[str, str]:
    """What a process that a Ray worker starts needs in its environment to join the same cluster."""
    context = ray.get_runtime_context()
    environment = {name: value for name, value in dict(context.runtime_env).items() if name != "_ray_commit"}
    return {CLUSTER_VARIABLE: context.gcs_address, RUNTIME_VARIABLE: json.dumps(environment)}


def nodes() -> list[dict[str, Any]]:
    """The machines of the cluster, those that are gone included."""
    found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return found
