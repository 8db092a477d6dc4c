"""`ponente eval`: the validation losses of a checkpoint or a Hugging Face model.

In: a training config for the data, and a model. Out: metrics, as `ponente train` gives them between steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ponente.config import execution
from ponente.config.decode import decode
from ponente.config.errors import RefusedError
from ponente.config.load import load_config
from ponente.config.tree import Tree
from ponente.evaluate.perplexity import evaluation_of
from ponente.models.families import lm_families
from ponente.models.saved import load_saved_model
from ponente.store.checkpoint import read_metadata
from ponente.tokens.load import load_tokenizer
from ponente.train.beginning import checkpoint_at
from ponente.train.config import TrainConfig, check_keys
from ponente.train.data.caches import open_data
from ponente.train.devices import prepare_devices
from ponente.train.setup import EvaluationSetup


@dataclass(frozen=True, kw_only=True)
class EvalConfig(TrainConfig):
    """A training config, and the model that is evaluated on its data."""

    checkpoint_path: str | None = execution(None)
    hf_checkpoint: str | None = execution(None)
    max_eval_length: int | None = None  # rows of so many tokens; None: as in training
    eval_on_train: bool = False  # also on what it was trained on

    @property
    def place(self) -> str:
        """Where the model lies."""
        given = [one for one in (self.checkpoint_path, self.hf_checkpoint) if one is not None]
        if len(given) != 1:
            raise RefusedError(
                f"found {len(given)} of --checkpoint_path and --hf_checkpoint; needed one, the model that is "
                "evaluated. Give the folder of a checkpoint, or a Hugging Face folder or hub name."
            )
        if self.checkpoint_path is None:
            return given[0]
        return checkpoint_at(given[0], "checkpoint_path", "or give a Hugging Face folder as --hf_checkpoint")


def evaluate_saved(config_path: str | None, flags: Sequence[str]) -> dict[str, float]:
    """Evaluates a saved model on the validation sets of a config; without one, on those that it was trained beside."""
    lm_families()
    return evaluate_model(_config(config_path, flags))


def evaluate_model(config: EvalConfig) -> dict[str, float]:
    """The metrics of the model that a config names."""
    prepare_devices(config.trainer)
    saved = load_saved_model(config.place)
    length = config.max_eval_length or config.train_seq_len
    config = replace(config, model=saved.config, train_seq_len=length)
    if config.max_eval_length is not None and config.max_eval_length > saved.config.max_seq_len:
        raise RefusedError(
            f"found max_eval_length: {config.max_eval_length} for a model of {saved.config.max_seq_len} tokens "
            "(max_seq_len); needed rows that it can see. Lower it."
        )
    config.check_length()
    tokenizer = load_tokenizer(config.data.tokenizer, vocab_size=config.data.vocab_size, engine="tokenizers")
    if tokenizer.vocab_size > saved.vocab_size:
        raise RefusedError(
            f"found data.tokenizer: {config.data.tokenizer} with {tokenizer.vocab_size} ids for {saved.place}, which "
            f"knows {saved.vocab_size}; needed the tokenizer of the model. Set data.tokenizer to it."
        )
    setup = EvaluationSetup(
        config=config,
        tokenizer=tokenizer,
        vocab_size=saved.vocab_size,
        hf=None,
        opened=open_data(config.data),
    )
    evaluation = evaluation_of(setup, on_train=config.eval_on_train)
    if evaluation is None:
        raise RefusedError(
            "found no validation set in the config; needed validation_urls or num_validation_sequences. Add one."
        )
    return evaluation(saved.weights)


def _config(config_path: str | None, flags: Sequence[str]) -> EvalConfig:
    """The config that is given; one without data is completed by what the checkpoint knows of its run."""
    loaded = load_config(EvalConfig, config_path, flags, check=check_keys)
    given = loaded.config
    if given.data.components:
        return given
    if given.checkpoint_path is None:
        raise RefusedError(
            "found no --config_path; needed a YAML config whose data section names validation sets, or a checkpoint "
            "of a run, which knows its own. Write: ponente eval --config_path CONFIG.yaml --checkpoint_path STEP"
        )
    tree = Tree.of(read_metadata(given.place).about["config"])
    tree.drop(("trainer", "mesh"))  # of the machine that it was trained on
    if loaded.tree.has(("trainer",)):
        tree.overlay_at(("trainer",), loaded.tree)
    run = decode(TrainConfig, tree)
    return replace(
        given,
        data=run.data,
        trainer=run.trainer,
        train_seq_len=given.train_seq_len or run.train_seq_len,
        log_entropy=given.log_entropy or run.log_entropy,
    )
