"""`ponente cache-dataset`: the caches of a config file, built or found finished.

In: the path of a YAML config and flags. Out: a line for each cache, as soon as it is finished, and beside the caches
the config as it was resolved, without secrets.
"""

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from ponente.config.errors import RefusedError
from ponente.config.load import Loaded, load_config
from ponente.config.snapshot import snapshot
from ponente.store.paths import absolute, join
from ponente.store.redaction import Redactor
from ponente.store.tensors import tensor_store
from ponente.store.volume import volume_of
from ponente.tokens.bar import showing_progress
from ponente.tokens.build import build_cache
from ponente.tokens.config import CacheDatasetConfig
from ponente.tokens.spec import cache_specs

CONFIGS = ".configs"

logger = logging.getLogger(__name__)

# Known keys that say nothing about data: those of training.
NOT_DATA = (
    *("model", "trainer", "optimizer", "train_seq_len", "initialize_from_hf", "use_hf_model_config", "epoch"),
    *("pad_tokenizer_to_match_model", "z_loss_weight", "hf_save_path", "hf_save_steps", "hf_upload", "hf_save_dtype"),
    *("adapter", "peft_save_path", "peft_hf_upload", "merged_hf_save_path", "merged_hf_upload", "data_seed"),
    *("initialize_from_checkpoint_path", "initialize_model_from_checkpoint_path", "log_entropy", "labeled_eval"),
    *("eval_harness", "eval_harness_steps", "hf_generation_eos_token_ids"),
)
# And those that say how batches are drawn from caches.
PASSED_OVER = (
    *NOT_DATA,
    *("data.auto_build_caches", "data.train_weights", "data.mixture_block_size", "data.stop_strategy", "data.shuffle"),
    *("data.permutation_type", "data.max_train_batches", "data.num_validation_sequences"),
    *("data.block_cross_document_attention", "data.shift_epochs", "data.target_budget", "data.experiment_budget"),
    *("data.max_documents_per_row", "data.over_length", "data.components.*.over_length"),
    *("data.pack", "data.tags", "data.components.*.pack", "data.components.*.tags", "data.components.*.format.pack"),
)


def cache_datasets(config_path: str | None, flags: Sequence[str], *, workers: int | None) -> Iterator[str]:
    """Builds every cache that the config names, one after the other."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("ponente").setLevel(logging.INFO)
    if config_path is None and not any(flag.startswith("--data") for flag in flags):
        raise RefusedError(
            "found no --config_path; needed a YAML config whose data section names a dataset. "
            "Write: ponente cache-dataset --config_path CONFIG.yaml"
        )
    if workers is not None and workers < 0:
        raise RefusedError(f"found --workers {workers}; needed 0 (this process) or more")
    loaded = load_config(CacheDatasetConfig, config_path, flags, passed_over=PASSED_OVER)
    specs = cache_specs(loaded.config.data)
    for spec in specs:
        tensor_store(absolute(spec.path))
    with showing_progress() as on_progress:
        for spec in specs:
            ledger = build_cache(spec, workers=workers, on_progress=on_progress)
            _store_snapshot(loaded)
            left_out = f", {ledger.bad_rows:,} set aside" if ledger.bad_rows else ""
            yield f"{spec.path}: {ledger.rows:,} documents, {ledger.tokens:,} tokens{left_out}"


def _store_snapshot(loaded: Loaded[CacheDatasetConfig]) -> None:
    """Stores the resolved config under its digest: one file for each that was ever used with these caches."""
    redactor = Redactor.of_process(os.environ, sys.argv[1:])
    text = snapshot(loaded.config, redactor.value, plugins=loaded.plugins)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = join(absolute(loaded.config.data.cache_dir), CONFIGS)
    try:
        volume_of(folder).create(join(folder, f"{name}.yaml"), text.encode())
    except OSError as error:  # caches may lie where one may only read
        logger.warning("the config could not be stored beside the caches: %s", error)
