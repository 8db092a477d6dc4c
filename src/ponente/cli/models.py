"""Commands about models: train, eval, export, sample."""

import argparse
import logging
import os

from ponente.cli.command import add_command, log_to_terminal
from ponente.config.errors import RefusedError


def add_model_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`ponente train`, `eval`, `export` and `sample`."""
    for name, command, summary, more in (
        ("train", _train, "train a language model, or go on with a run that was stopped", ""),
        ("eval", _eval, "evaluate a checkpoint or a Hugging Face model on validation sets", " --checkpoint_path STEP"),
        (
            "export",
            _export,
            "write a checkpoint as a Hugging Face folder",
            " --checkpoint_path STEP --output_dir FOLDER",
        ),
    ):
        sub = add_command(commands, name, command, summary)
        sub.add_argument("--config_path", help="a YAML training config; a path or any fsspec URL")
        sub.set_defaults(takes_overrides=True)
        sub.usage = f"ponente {name} --config_path CONFIG.yaml{more} [--KEY.PATH VALUE ...]"
        sub.epilog = "Any key may be given as a flag: --trainer.num_train_steps 100, --optimizer.learning_rate 1e-3"
        if name == "train":
            _add_estimate(sub)
    sample = add_command(commands, "sample", _sample, "write text with a checkpoint or a Hugging Face model")
    sample.add_argument(
        "--model", required=True, help="a checkpoint, a run's checkpoints, a Hugging Face folder or name"
    )
    sample.add_argument(
        "--prompt", action="append", default=[], help="a text to go on with; may be given several times"
    )
    sample.add_argument("--max_new_tokens", type=int, help="(default: 256, or as many as the model has room for)")
    sample.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest (default: %(default)s)")
    sample.add_argument("--top_k", type=int, help="draw from the k likeliest tokens only")
    sample.add_argument("--top_p", type=float, help="draw from the likeliest that reach this probability together")
    sample.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    sample.add_argument("--tokenizer", help="instead of the model's own")


def _add_estimate(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--estimate",
        metavar="HARDWARE",
        nargs="?",
        const="",
        help="print memory, hours and cost, and do not train: on hardware that need not be there, such as 8xh100 or "
        "v5p-128, or on these devices",
    )
    train.add_argument(
        "--mfu",
        type=float,
        help="for --estimate: the share of the peak that is reached (default: 0.5, 0.45 with connections)",
    )
    train.add_argument("--price", type=float, help="for --estimate: dollars for an hour of one device")


def _estimate(options: argparse.Namespace) -> int:
    from ponente.train.config import load_train_config
    from ponente.train.estimate import estimate_lines

    mfu = options.mfu
    if mfu is not None and not 0 < mfu <= 1:
        raise RefusedError(f"found --mfu {mfu}; needed a share of the peak, above 0 and up to 1, such as 0.4.")
    config = load_train_config(options.config_path, options.overrides).config
    for line in estimate_lines(config, options.estimate, mfu=mfu, price=options.price):
        print(line, flush=True)
    return 0


def _train(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.estimate is not None:
        return _estimate(options)
    if options.mfu is not None or options.price is not None:
        raise RefusedError("found --mfu or --price without --estimate; needed both. Add --estimate, or remove them.")
    from ponente.train.memory import keep_memory

    keep_memory()  # before anything that starts a thread
    from ponente.experiment.training import train_lm
    from ponente.train.config import load_train_config

    log_to_terminal()
    config = load_train_config(options.config_path, options.overrides).config
    is_first = config.trainer.distributed.found(os.environ).is_first
    if not is_first:  # its log file has the rest
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.WARNING)
    result = train_lm(config)
    if not is_first:
        return 0
    for name, value in result.metrics.items():
        if name.endswith(("/loss", "/bpb")):
            print(f"{name}: {value:.4f}")
    print(f"checkpoint: {result.checkpoint}")
    print(f"metrics, record: {result.folder}")
    if result.exported is not None:
        print(f"Hugging Face model: {result.exported}")
    print(f"to write with it: ponente sample --model {result.checkpoint} --prompt '...'")
    return 0


def _eval(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.memory import keep_memory

    keep_memory()
    from ponente.evaluate.command import evaluate_saved

    log_to_terminal()
    for name, value in evaluate_saved(options.config_path, options.overrides).items():
        print(f"{name}: {value:.6g}")
    return 0


def _export(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.train.export_command import export_checkpoint

    log_to_terminal()
    print(export_checkpoint(options.config_path, options.overrides))
    return 0


def _sample(options: argparse.Namespace, arguments: list[str]) -> int:
    from ponente.generate.command import sample
    from ponente.generate.sampling import SamplingConfig

    sampling = SamplingConfig(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
    )
    prompts = options.prompt or [""]
    shown = None
    for number, piece in sample(options.model, prompts, sampling, tokenizer_name=options.tokenizer):
        if number != shown:
            print(("" if shown is None else "\n\n") + prompts[number], end="")
            shown = number
        print(piece, end="", flush=True)
    print(prompts[0] if shown is None else "")  # of a text that ended at once there is no piece
    return 0
