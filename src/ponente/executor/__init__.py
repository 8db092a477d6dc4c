"""The graph of steps: identity, plan, claim and commit, run. Knows nothing about language models."""

from ponente.config.errors import RefusedError, UserError
from ponente.executor.estimate import Estimate, RateCard
from ponente.executor.main import executor_main, plan_steps, run_steps
from ponente.executor.options import ExecutorOptions
from ponente.executor.step import (
    ExecutorStep,
    Retries,
    output_path_of,
    step_type,
    this_output_path,
    this_state_path,
    versioned,
)
from ponente.executor.summary import Summary

__all__ = [
    "Estimate",
    "ExecutorOptions",
    "ExecutorStep",
    "RateCard",
    "RefusedError",
    "Retries",
    "Summary",
    "UserError",
    "executor_main",
    "output_path_of",
    "plan_steps",
    "run_steps",
    "step_type",
    "this_output_path",
    "this_state_path",
    "versioned",
]
