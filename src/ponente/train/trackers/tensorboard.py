"""TensorBoard: event files under the run's folder."""

import importlib.util
import os
from dataclasses import dataclass

from ponente.config.errors import RefusedError
from ponente.store.paths import join
from ponente.train.trackers.config import TrackerConfig
from ponente.train.trackers.tracker import RunInfo, Tracker


@TrackerConfig.register_subclass("tensorboard")
@dataclass(frozen=True, kw_only=True)
class TensorboardConfig(TrackerConfig):
    """Event files in `logdir`/RUN_ID, by default in `tensorboard`/RUN_ID beside the run's folder."""

    logdir: str | None = None

    def check(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise RefusedError(
                "found a tracker of type tensorboard and no package tensorboard; needed the package, which writes the "
                "event files. Run pip install 'ponente[tensorboard]', or give --trainer.tracker '{type: local}', which "
                "needs nothing."
            )

    def begin(self, run: RunInfo) -> Tracker:
        self.check()
        from ponente.train.trackers.event_file import EventFileTracker

        logdir = self.logdir or join(run.local_folder.removesuffix(f"/{run.run_id}"), "tensorboard")
        return EventFileTracker(os.path.join(logdir, run.run_id), run.first_step)
