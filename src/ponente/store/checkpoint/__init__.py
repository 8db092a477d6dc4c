"""Checkpoints: named arrays and what is said of them, in a folder that is either whole or not to be seen."""

from ponente.store.checkpoint.reader import Target, load
from ponente.store.checkpoint.record import (
    ArrayRecord,
    CheckpointError,
    CheckpointMetadata,
    make_permanent,
    read_metadata,
    step_path,
)
from ponente.store.checkpoint.run_folder import (
    FolderHold,
    newest,
    remove,
    remove_leftovers,
    runs_in,
    whole_checkpoints,
)
from ponente.store.checkpoint.snapshot import Staging
from ponente.store.checkpoint.writer import PendingSave, Writers, begin_save

__all__ = [
    "ArrayRecord",
    "CheckpointError",
    "CheckpointMetadata",
    "FolderHold",
    "PendingSave",
    "Staging",
    "Target",
    "Writers",
    "begin_save",
    "load",
    "make_permanent",
    "newest",
    "read_metadata",
    "remove",
    "remove_leftovers",
    "runs_in",
    "step_path",
    "whole_checkpoints",
]
