"""Keys of Levanter that we knowingly do without: those that change nothing warn, those that would are refused."""

from collections.abc import Callable
from typing import Any

from ponente.config.problems import ConfigError, Problem, shown
from ponente.config.tree import Path, Tree

_SHARDS = "caches are written in shards whose size Ponente chooses"
_RAY = "a Ray cluster is named on the command line, with --cluster"
_PROGRAMS = "compiled programs are not sent to trackers; trainer.profiler shows what runs"

LEFT_OUT = {
    "auto_start_cluster": _RAY,
    "data.cache_options": _SHARDS,
    "data.components.*.cache_options": _SHARDS,
    "data.ignore_token_id": "loss masks say which tokens count",
    "data.shuffle_before_trainval_split": "Ponente chooses which sequences num_validation_sequences takes",
    "model.ddw_gen_pattern": "all ways are mixed in one pass",
    "model.flash_attention_block_size": "attention kernels choose their own blocks",
    "model.tokenizer": "data.tokenizer is the tokenizer of the model too",
    "model.use_flash_attention": "model.attn_backend chooses the kernel of attention",
    "start_workers": _RAY,
    "trainer.allow_nondivisible_batch_size": "batch sizes are checked before training starts",
    "trainer.checkpointer.debug": "checkpoints need no debugging switches",
    "trainer.checkpointer.write": "checkpoints are written as Ponente sees fit",
    "trainer.log_jaxprs": _PROGRAMS,
    **{
        f"trainer.{tracker}.{key}": "trackers are sent metrics and the config, no code and no programs"
        for tracker in ("tracker", "tracker.*")
        for key in ("save_code", "save_xla_dumps", "background", "metric_destination")
    },
    "trainer.log_xla_hlo": _PROGRAMS,
    "trainer.quantization.amax_history_length": "each array is scaled by its own largest number, without a history",
    "trainer.quantization.compute_dtype": "trainer.mp says what is computed with",
    "trainer.ray": _RAY,
    "trainer.use_explicit_mesh_axes": "what is moved between devices is written out in the step",
    "trainer.shutdown_at_exit": "whoever starts a machine also ends it",
}


def _is(*names: str) -> Callable[[Any], bool]:
    return lambda value: value in names


# path -> which values are meant, why they are refused, what to use
REFUSED: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "data.components.*.format.type": (
        _is("preference_chat"),
        "a format of single answers, for Ponente has no preference training (DPO)",
        "use type: chat with the preferred answers as its messages",
    ),
    "optimizer.type": (
        _is("soap"),
        "an optimizer that Ponente has, and SOAP is none of them",
        "use type: muon, which also preconditions matrices, or type: adam",
    ),
}


# Keys that will work, and which of their values ask for nothing yet; those are dropped, others refused.
_OFF: tuple[Any, ...] = (None, False, [], {}, "")
NOT_YET: dict[str, tuple[Any, ...]] = {
    "adapter": (*_OFF, "none", {"type": "none"}),
    "peft_save_path": _OFF,
    "peft_hf_upload": _OFF,
    "merged_hf_save_path": _OFF,
    "merged_hf_upload": _OFF,
    "eval_harness": _OFF,
    "eval_harness_steps": (None, 10000),
    "labeled_eval": _OFF,
    "trainer.quantization.int8": _OFF,
    "trainer.quantization.targets": _OFF,
}


def refuse_not_yet(tree: Tree) -> None:
    """Raises, naming each, if the tree sets keys that do not work yet; those at their defaults are dropped."""
    problems = []
    for pattern, defaults in NOT_YET.items():
        for path in list(tree.matching(tuple(pattern.split(".")))):
            value = tree.get(path)
            if any(value == default and type(value) is type(default) for default in defaults):
                tree.drop(path)
            else:
                problems.append(not_yet(tree, path, "remove it"))
    if problems:
        raise ConfigError(*problems)


def not_yet(tree: Tree, path: Path, remedy: str) -> Problem:
    """What is said of a key that will work later."""
    return Problem(
        found=f"{tree.first_place(path)} = {shown(tree.get(path))}",
        needed=f"a config without it (not yet: {'.'.join(path)})",
        remedy=remedy,
    )


def refuse(tree: Tree) -> None:
    """Raises if the tree asks for what we do not do and cannot pass over."""
    problems = [
        Problem(found=f"{tree.place(path)} = {shown(tree.get(path))}", needed=needed, remedy=remedy)
        for pattern, (is_meant, needed, remedy) in REFUSED.items()
        for path in tree.matching(tuple(pattern.split(".")))
        if is_meant(tree.get(path))
    ]
    if problems:
        raise ConfigError(*problems)


def leave_out(tree: Tree, warnings: list[str]) -> None:
    """Removes what has no meaning here, and says so."""
    for pattern, reason in LEFT_OUT.items():
        for path in list(tree.matching(tuple(pattern.split(".")))):
            warnings.append(f"{tree.first_place(path)} is left out: {reason}. Remove it to be rid of this warning.")
            tree.drop(path)
