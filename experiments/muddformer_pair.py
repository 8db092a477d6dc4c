"""Does a MUDDFormer learn more from the same tokens than the Transformer++ of its size? Both runs, and their curves.

Run:   python experiments/muddformer_pair.py --small                      # anywhere, on the quickstart's Shakespeare
       python experiments/muddformer_pair.py --data.train_urls FOLDER --data.validation_urls FILES --dry_run
       python experiments/muddformer_pair.py --data.train_urls FOLDER --data.validation_urls FILES
Cost:  --small: about two minutes on 2 cores.   The whole: 7 billion tokens for each of two models of 410M parameters.
Expected: the MUDDFormer's losses below the baseline's: --small as it is, about 5.0 and 5.3 on validation text, with 3%
       more parameters; on the Pile, with 0.6% more, the paper's perplexities of 10.8 and 11.7.

The runs are those of config/mudd_medium.yaml and config/llama_medium.yaml. Any key of a training config is a flag here,
for both (`--trainer.num_train_steps 500`, `--data.format.type text`), but for the tracker, which is the local one, and
with --small what decides on tokens; the other flags are the executor's.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec
from tutorials import first_model

from ponente.cluster.resources import CpuOnly, GpuConfig, Resources
from ponente.executor import ExecutorStep, UserError, executor_main
from ponente.experiment.curves import PICTURE, TABLE, CurvesConfig, draw_losses
from ponente.experiment.tokenize import TokenizeConfig, tokenize
from ponente.experiment.training import LOGS, TrainStepConfig, train_step
from ponente.train.config import TrainConfig, load_train_config
from ponente.train.trackers import LocalTrackerConfig

CONFIGS = Path(__file__).resolve().parents[1] / "config"
RUNS = {"MUDDFormer": "mudd_medium", "Transformer++": "llama_medium"}
QUICKSTART = "of the quickstart"  # its steps take this place
SMALL = (
    *("--data.train_urls", QUICKSTART, "--data.tokenizer", QUICKSTART, "--data.format.type", "text"),
    *("--data.vocab_size", "none", "--data.shuffle", "true"),
    *("--model.max_seq_len", "128", "--model.hidden_dim", "128", "--model.intermediate_dim", "384"),
    *("--model.num_layers", "6", "--model.num_heads", "4", "--model.num_kv_heads", "4"),
    *("--optimizer.learning_rate", "2e-3", "--optimizer.warmup", "30"),
    *("--trainer.num_train_steps", "120", "--trainer.train_batch_size", "16", "--trainer.steps_per_eval", "30"),
    *("--trainer.mp", "f32", "--trainer.watch.interval", "0"),
)
TRACKER = ("--trainer.tracker",)
TEXT = tuple(  # what decides on tokens; they are the quickstart's where the run is small
    f"--data.{key}"
    for key in (
        *("train_urls", "validation_urls", "id", "name", "source", "stream", "configs", "components", "format"),
        *("text_key", "tokenizer", "enforce_eos", "chat_template", "cache_dir", "cache_options", "max_bad_records"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line says: of the size, of the training configs, and to the executor."""

    is_small: bool
    keys: tuple[str, ...]
    executor: tuple[str, ...]

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Flags":
        """Keys of configs are told by the dot in their names; what follows one, up to the next flag, is its value."""
        keys: list[str] = []
        others: list[str] = []
        target = others
        for argument in arguments:
            if argument.startswith("--"):
                target = keys if "." in argument.partition("=")[0] else others
            target.append(argument)
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--small", action="store_true")
        own, executor = parser.parse_known_args(others)
        return cls(is_small=own.small, keys=tuple(keys), executor=tuple(executor))

    def check(self) -> None:
        """Refuses keys that would count for nothing."""
        self._refuse(TRACKER, "the curves are drawn from what the local tracker keeps. Leave it out")
        if self.is_small:
            self._refuse(TEXT, "--small trains on the quickstart's text. Leave out the one or the other")

    def _refuse(self, taken: tuple[str, ...], why: str) -> None:
        names = [key.partition("=")[0] for key in self.keys]
        if given := [name for name in names if any(name == one or name.startswith(f"{one}.") for one in taken)]:
            raise UserError(f"found {', '.join(given)}; needed none, for {why}.")


def pair(flags: Flags) -> ExecutorStep:
    """The step that draws both runs; they and the tokens are what it needs."""
    flags.check()
    given = (*SMALL, *flags.keys) if flags.is_small else flags.keys
    resources: Resources = CpuOnly(num_cpus=2) if flags.is_small else GpuConfig(gpu_count=1)
    configs = {name: load_train_config(str(CONFIGS / f"{file}.yaml"), given).config for name, file in RUNS.items()}
    tokens = first_model.tokens if flags.is_small else tokens_of(next(iter(configs.values())))
    models = {
        name: ExecutorStep(
            name=f"muddformer_pair/{RUNS[name]}",
            fn=train_step,
            config=TrainStepConfig(
                train=with_places(config, is_small=flags.is_small),
                caches=dict.fromkeys(config.data.components, tokens / "tokens"),
            ),
            resources=resources,
        )
        for name, config in configs.items()
    }
    logs = {name: model / LOGS for name, model in models.items()}
    return ExecutorStep(name="muddformer_pair/curves", fn=draw_losses, config=CurvesConfig(logs=logs))


def with_places(config: TrainConfig, *, is_small: bool) -> TrainConfig:
    """The config with trackers that are here everywhere, and where it is small, with the quickstart's text."""
    trainer = replace(config.trainer, tracker=LocalTrackerConfig())
    if not is_small:
        return replace(config, trainer=trainer)
    (name,) = config.data.components
    component = replace(config.data.components[name], source=first_model.source)
    data = replace(config.data, tokenizer=first_model.data.tokenizer, components={name: component})
    return replace(config, trainer=trainer, data=data)


def tokens_of(config: TrainConfig) -> ExecutorStep:
    """The step that makes the token caches of a config's one dataset."""
    config.data.check()
    (component,) = config.data.components.values()
    return ExecutorStep(
        name="tokenized/muddformer_pair",
        fn=tokenize,
        config=TokenizeConfig(
            source=component.source,
            tokenizer=config.data.tokenizer,
            vocab_size=config.data.vocab_size,
            format=component.format,
            enforce_eos=config.data.enforce_eos,
            chat_template=config.data.chat_template,
            max_bad_records=config.data.max_bad_records,
        ),
    )


if __name__ == "__main__":
    flags = Flags.of(sys.argv[1:])
    if {"-h", "--help"} & set(flags.executor):
        print(__doc__)
        executor_main(steps=[], argv=flags.executor)
    try:
        curves = pair(flags)
    except UserError as error:
        print(f"ponente: {error}", file=sys.stderr)
        if not (flags.is_small or flags.keys):
            print("Or add --small, which needs no text of yours.", file=sys.stderr)
        sys.exit(2)
    outcome = executor_main(steps=[curves], description=__doc__, argv=flags.executor)
    if outcome is not None and curves in outcome:
        for file in (PICTURE, TABLE):
            print(f"  {outcome.path(curves / file)}")
        with fsspec.open(outcome.path(curves / TABLE), "rt", newline="") as table:
            last = {(row["run"], row["metric"]): float(row["loss"]) for row in csv.DictReader(table)}
        for (run, metric), loss in last.items():
            print(f"  {run:<16}{metric:<12}{loss:.3f}")
