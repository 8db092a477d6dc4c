"""Gradients to updates: learning-rate schedules, weight-decay masks, and optimizers by their `type`."""

from ponente.train.optimizers.adam import AdamConfig
from ponente.train.optimizers.config import OptimizerConfig
from ponente.train.optimizers.lion import LionConfig
from ponente.train.optimizers.muon import MuonConfig

__all__ = ["AdamConfig", "LionConfig", "MuonConfig", "OptimizerConfig"]
