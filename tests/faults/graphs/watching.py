"""A model that is still training, and evaluations that read its checkpoints meanwhile."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import traces

from ponente.executor import ExecutorStep, executor_main, this_output_path, this_state_path
from ponente.store.volume import publishing

WEIGHTS = 10_000


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    checkpoints: str = this_state_path("checkpoints")
    output_path: str = this_output_path("weights.json")


def train(config: TrainConfig) -> None:
    """Publishes one checkpoint, leaves another half-written until the test lets it go on, and publishes that too."""
    traces.leave("trained")
    with publishing(f"{config.checkpoints}/step-1.json") as private:
        Path(private).write_text(json.dumps([1] * WEIGHTS))
    with publishing(f"{config.checkpoints}/step-2.json") as private, open(private, "w") as file:
        text = json.dumps([2] * WEIGHTS)
        file.write(text[: len(text) // 2])
        file.flush()
        traces.leave("halfway")
        traces.await_one("go")
        file.write(text[len(text) // 2 :])
    Path(config.output_path).write_text(text)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    checkpoints: str
    at_least: int
    output_path: str = this_output_path("scores.json")


def evaluate(config: EvaluateConfig) -> None:
    """Scores the checkpoints that are there, once there are enough."""
    while len(found := sorted(Path(config.checkpoints).glob("*.json"))) < config.at_least:
        time.sleep(0.005)
    scores = {path.name: sum(json.loads(path.read_text())) for path in found}
    Path(config.output_path).write_text(json.dumps(scores))


model = ExecutorStep(name="watching/model", fn=train, config=TrainConfig())
scores = ExecutorStep(
    name="watching/scores",
    fn=evaluate,
    config=EvaluateConfig(checkpoints=model.nonblocking() / "checkpoints", at_least=1),
)
scores_so_far = ExecutorStep(
    name="watching/scores-so-far",
    fn=evaluate,
    config=EvaluateConfig(checkpoints=model.nonblocking() / "checkpoints", at_least=0),
)

if __name__ == "__main__":
    executor_main(steps=[model, scores, scores_so_far], description=__doc__)
