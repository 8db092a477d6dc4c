"""The experiment of two models: what it would run, what its flags change, and what it draws."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "muddformer_pair.py"
MODELS = ["muddformer_pair/mudd_medium", "muddformer_pair/llama_medium"]


def planned(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--dry_run", "--prefix", str(tmp_path), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)


def steps(tmp_path: Path, *flags: str) -> dict[str, str]:
    """The steps of the plan, by name, with their identities."""
    ended = planned(tmp_path, *flags)
    assert ended.returncode == 0, ended.stderr
    each = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("  run ")]
    return {name: identity for name, _, identity in (one.rpartition("-") for one in each)}


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


def test_flags_that_configs_do_not_know_are_refused(tmp_path: Path) -> None:
    ended = planned(tmp_path, "--small", "--trainer.train_steps", "3")
    assert ended.returncode == 2
    assert "num_train_steps" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--small", "--data.train_urls", "/text"], "--data.train_urls"),
        (["--small", "--data.tokenizer=gpt2"], "--data.tokenizer"),
        (["--small", "--data.id", "wikitext"], "--data.id"),
        (["--small", "--data.format.type", "chat"], "--data.format.type"),
        (["--data.train_urls", "/text", "--trainer.tracker", "{type: noop}"], "--trainer.tracker"),
    ],
)
def test_flags_that_would_count_for_nothing_are_refused(tmp_path: Path, flags: list[str], found: str) -> None:
    ended = planned(tmp_path, *flags)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"ponente: found {found}; needed none, for ")


def test_who_gives_no_text_is_told_what_needs_none(tmp_path: Path) -> None:
    ended = planned(tmp_path)
    assert ended.returncode == 2
    assert "--data.train_urls" in ended.stderr and "Or add --small" in ended.stderr


def test_tokens_are_made_with_the_keys_of_the_config(tmp_path: Path) -> None:
    plain = steps(tmp_path, "--data.train_urls", "/text", "--data.format.type", "chat")
    chat = steps(tmp_path, "--data.train_urls", "/text", "--data.format.type", "chat", "--data.chat_template", "hello")
    assert plain["tokenized/muddformer_pair"] != chat["tokenized/muddformer_pair"]


def test_one_command_trains_both_and_draws_their_curves(tmp_path: Path) -> None:
    rows = [{"input_ids": [(7 * row + place * place) % 32 for place in range(17)]} for row in range(16)]
    for name in ("train", "held"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        *(sys.executable, str(SCRIPT), "--prefix", str(tmp_path / "runs"), "--launcher", "driver"),
        *("--data.train_urls", str(tmp_path / "train.jsonl"), "--data.validation_urls", str(tmp_path / "held.jsonl")),
        *("--data.tokenizer", "passthrough", "--data.vocab_size", "32", "--model.max_seq_len", "16"),
        *("--model.hidden_dim", "16", "--model.intermediate_dim", "128", "--model.num_layers", "2"),
        *("--model.num_heads", "2", "--model.num_kv_heads", "2", "--model.dynamic_dense_hidden_expand", "none"),
        *("--trainer.num_train_steps", "3", "--trainer.train_batch_size", "4", "--trainer.steps_per_eval", "2"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder,) = {Path(line.strip()).parent for line in ended.stdout.splitlines() if line.strip().endswith(".svg")}
    with (folder / "losses.csv").open(newline="") as table:
        points = [(row["run"], row["metric"], int(row["tokens"])) for row in csv.DictReader(table)]
    both = [(run, metric) for run in ("MUDDFormer", "Transformer++") for metric in ("train/loss", "eval/loss")]
    expected = {"train/loss": [0, 64, 128], "eval/loss": [128, 192]}
    assert points == [(run, metric, tokens) for run, metric in both for tokens in expected[metric]]
    assert not list(tmp_path.rglob("*tfevents*")), "TensorBoard need not be there"
    picture = (folder / "losses.svg").read_text()
    assert picture.count("<polyline") == 4 and all(f"{run}, validation (dashed): " in picture for run, _ in both)
