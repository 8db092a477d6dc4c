"""The experiment of two models, as a plan: what it would run, and what its flags change."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "muddformer_pair.py"
MODELS = ["muddformer_pair/mudd_medium", "muddformer_pair/llama_medium"]


def steps(tmp_path: Path, *flags: str) -> dict[str, str]:
    """The steps of the plan, by name, with their identities."""
    command = [sys.executable, str(SCRIPT), "--dry_run", "--prefix", str(tmp_path), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    planned = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("  run ")]
    return {name: identity for name, _, identity in (one.rpartition("-") for one in planned)}


@pytest.mark.parametrize(
    ("flags", "before"),
    [
        (["--small"], ["first_model/documents", "first_model/tokenizer", "tokenized/first_model"]),
        (["--data.train_urls", "/pile"], ["tokenized/muddformer_pair"]),
    ],
)
def test_both_models_are_trained_on_the_same_tokens_and_drawn(
    tmp_path: Path, flags: list[str], before: list[str]
) -> None:
    plain = steps(tmp_path, *flags)
    assert list(plain) == [*before, *MODELS, "muddformer_pair/curves"]
    longer = steps(tmp_path, *flags, "--trainer.num_train_steps", "7")
    assert [name for name in plain if plain[name] == longer[name]] == before
