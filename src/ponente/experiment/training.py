"""Training, evaluation, sampling: what the commands run, and the same as steps of an experiment.

A training step keeps checkpoints and metrics in its state, so that one that was killed or preempted goes on; its output
has the model as a Hugging Face folder (`step / "hf"`), where its family has such, and its last metrics.
"""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ponente.cluster.context import current_step
from ponente.config.errors import RefusedError
from ponente.evaluate.command import EvalConfig, evaluate_model
from ponente.evaluate.perplexity import evaluation_of
from ponente.executor import Summary, this_output_path, this_state_path
from ponente.experiment.hosts import train_on_hosts
from ponente.generate.command import sample
from ponente.generate.sampling import SamplingConfig
from ponente.store.paths import join
from ponente.store.volume import volume_of
from ponente.train.config import TrainConfig
from ponente.train.data.config import TrainDataConfig
from ponente.train.export_command import export_saved
from ponente.train.run import TrainResult, train

CHECKPOINTS, LOGS, HF, METRICS = "checkpoints", "logs", "hf", "metrics.json"
RUN = "model"  # the id of a step's run, and the name of its folder in the logs


def train_lm(config: TrainConfig) -> TrainResult:
    """Trains a language model; with the same `trainer.id`, goes on where the run stands.

    Example: `train_lm(load_train_config("config/shakespeare_cpu.yaml").config).metrics["eval/loss"]`
    """
    return train(config, make_evaluate=evaluation_of)


@dataclass(frozen=True, kw_only=True)
class TrainStepConfig:
    """A training run as a step: its places are the step's own."""

    train: TrainConfig
    caches: dict[str, str] = field(default_factory=dict)  # of components: `tokenized_step / "tokens"`
    state_path: str = this_state_path()
    output_path: str = this_output_path()


def train_step(config: TrainStepConfig) -> Summary:
    """Trains, and leaves `hf/` and `metrics.json` in the output, checkpoints and logs in the state."""
    step = current_step()
    assert step is not None, "train_step runs as a step; outside one, call train_lm"
    trainer = config.train.trainer
    checkpointer = replace(trainer.checkpointer, base_path=join(config.state_path, CHECKPOINTS))
    trainer = replace(trainer, id=RUN, log_dir=join(config.state_path, LOGS), checkpointer=checkpointer)
    data = _with_caches(config.train.data, config.caches)
    whole = replace(config.train, trainer=trainer, data=data)
    if step.resources is not None and step.resources.host_count > 1:
        result = train_on_hosts(whole, step.resources, step, config.state_path)
    else:
        result = train_lm(whole)
    try:
        whole.model.to_hf(vocab_size=1)
    except RefusedError as error:  # a family that transformers does not have
        step.notes.append(f"the model is in the checkpoint alone: {error}")
    else:
        export_saved(result.checkpoint, join(config.output_path, HF))
    _write(join(config.output_path, METRICS), result.metrics)
    step.state_objects.update({CHECKPOINTS, LOGS})
    return Summary(values={"steps": result.steps, **_losses(result.metrics)})


@dataclass(frozen=True, kw_only=True)
class EvaluateStepConfig:
    """A model on the validation sets of a config."""

    model: str
    evaluation: EvalConfig
    caches: dict[str, str] = field(default_factory=dict)
    output_path: str = this_output_path(METRICS)


def evaluate_step(config: EvaluateStepConfig) -> Summary:
    """Evaluates, and leaves `metrics.json` in the output."""
    data = _with_caches(config.evaluation.data, config.caches)
    metrics = evaluate_model(replace(config.evaluation, hf_checkpoint=config.model, data=data))
    _write(config.output_path, metrics)
    return Summary(values=_losses(metrics))


@dataclass(frozen=True, kw_only=True)
class SampleStepConfig:
    """Text that a model writes behind prompts."""

    model: str
    prompts: tuple[str, ...]
    sampling: SamplingConfig
    output_path: str = this_output_path("samples.json")


def sample_step(config: SampleStepConfig) -> None:
    """Writes, and leaves `samples.json` in the output: a list of prompts and what follows them."""
    texts = [""] * len(config.prompts)
    for number, piece in sample(config.model, config.prompts, config.sampling):
        texts[number] += piece
    pairs = [{"prompt": prompt, "text": text} for prompt, text in zip(config.prompts, texts, strict=True)]
    _write(config.output_path, pairs)


def _with_caches(data: TrainDataConfig, caches: dict[str, str]) -> TrainDataConfig:
    """The data with the caches that other steps built."""
    components = {
        name: replace(component, cache_dir=caches.get(name, component.cache_dir))
        for name, component in data.components.items()
    }
    return replace(data, components=components)


def _losses(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name in ("eval/loss", "eval/bpb")}


def _write(path: str, value: Any) -> None:
    volume_of(path).replace(path, json.dumps(value, indent=1, ensure_ascii=False).encode())
