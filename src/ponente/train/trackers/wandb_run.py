"""A run of Weights & Biases.

All lives of a run are one run of W&B, by its id. W&B takes steps in rising order only, and a resumed run begins after
the last step that W&B has: steps that an earlier life sent stand as it sent them, later ones are added, so none is lost
or doubled. Offline, W&B resumes nothing: each life leaves a folder of its own, for `wandb sync --id ID` to send.
"""

import logging
import netrc
import os
import re
import sys
from typing import Any
from urllib.parse import urlsplit

from ponente.store.redaction import Redactor
from ponente.train.trackers.noop import NoTracker
from ponente.train.trackers.tracker import Histogram, Metric, Metrics, RunInfo, Tracker
from ponente.train.trackers.wandb import WandbConfig

wandb: Any
try:
    import wandb  # type: ignore[import-not-found,no-redef,unused-ignore]
except ModuleNotFoundError:  # `begin` says so
    wandb = None

_NOT_IN_IDS = re.compile(r"[/\\#?%:]")

logger = logging.getLogger(__name__)


class WandbTracker:
    """Tells a run of W&B."""

    name = "wandb"

    def __init__(self, run: Any) -> None:
        self._run = run
        self._first_step = int(run.starting_step)

    def log(self, metrics: Metrics, step: int) -> None:
        if step >= self._first_step:
            self._run.log({name: _value(metric) for name, metric in metrics.items()}, step=step)

    def log_summary(self, metrics: Metrics) -> None:
        self._run.summary.update({name: _value(metric) for name, metric in metrics.items()})

    def flush(self) -> None:
        """Nothing to do: W&B's own process has what it was told."""

    def finish(self) -> None:
        self._run.finish()


def begin(config: WandbConfig, run: RunInfo) -> Tracker:
    """A tracker in W&B; where that cannot be had, offline, or none at all, with a warning. Never asks for a key."""
    if wandb is None:
        logger.warning(
            "found a tracker of type wandb and no package wandb: this run is not sent to W&B. Run pip install "
            "'ponente[wandb]' to have it."
        )
        return NoTracker()
    asked = config.mode or os.environ.get("WANDB_MODE") or "online"
    mode = asked
    if asked == "online" and not _has_key():
        mode = "offline"
        logger.warning(
            "found no W&B key: this run is kept offline, under %s. Run wandb login or set WANDB_API_KEY to send runs, "
            "wandb sync to send this one; mode: offline silences this.",
            run.local_folder,
        )
    for tried in dict.fromkeys((mode, "offline")):
        try:
            return WandbTracker(_begin_run(config, run, tried))
        except Exception:
            following = "it is not sent to W&B" if tried == "offline" else "it is kept offline"
            logger.warning("W&B could not begin the run in mode %s; %s", tried, following, exc_info=True)
    return NoTracker()


def _begin_run(config: WandbConfig, run: RunInfo, mode: str) -> Any:
    settings = wandb.Settings(
        console="off",  # what is printed may hold secrets, and has a live line
        x_disable_meta=Redactor().arguments(sys.argv) != sys.argv,  # it would send the command line as it is
    )
    os.makedirs(run.local_folder, exist_ok=True)
    return wandb.init(
        entity=config.entity,
        project=config.project,
        name=config.name or run.name or run.run_id,
        tags=list(dict.fromkeys((*run.tags, *config.tags))),
        id=_NOT_IN_IDS.sub("-", config.id or run.run_id),
        group=config.group,
        mode=mode,
        resume=config.resume if mode == "online" else None,
        dir=run.local_folder,
        config=dict(run.config),
        settings=settings,
    )


def _has_key() -> bool:
    """Whether W&B would find a key without asking: in the environment, its settings or a netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = wandb.setup().settings
    return bool(settings.api_key) or _is_in_netrc(urlsplit(str(settings.base_url)).hostname or "")


def _is_in_netrc(host: str) -> bool:
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(os.path.expanduser(path)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):  # W&B will find no key there either
            continue
    return False


def _value(metric: Metric) -> Any:
    if isinstance(metric, Histogram):
        return wandb.Histogram(np_histogram=(list(metric.counts), list(metric.edges)))
    return metric
