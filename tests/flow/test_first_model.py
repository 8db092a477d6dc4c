"""The script of `make quickstart`, with fewer steps: it says where all lies, and the second time all are hits."""

import json
import os
import subprocess
import sys
from pathlib import Path

TUTORIALS = Path(__file__).parents[2] / "experiments" / "tutorials"
PLACES = ("documents", "tokenizer", "token cache", "model (Hugging Face)", "scores", "samples")


def run(script: Path) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PONENTE_", "XLA_"))}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=script.parent, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def test_the_quickstart_trains_evaluates_and_writes_and_is_all_hits_again(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.txt").symlink_to(TUTORIALS / "shakespeare.txt")
    text = (TUTORIALS / "first_model.py").read_text()
    for long, short in {"STEPS = 300": "STEPS = 12", "num_layers=4": "num_layers=1", "tokens=100": "tokens=4"}.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    script = tmp_path / "first_model.py"
    script.write_text(text)
    first = run(script)
    assert first[0] == "6 steps: 6 done"
    found = {name: line.split()[-1] for name in PLACES for line in first if line.strip().startswith(name + " ")}
    assert found.keys() == set(PLACES)
    assert all(Path(tmp_path, place).exists() for place in found.values())
    metrics = json.loads(Path(tmp_path, found["scores"]).read_text())
    assert 5.5 < metrics["eval/loss"] < 7.6  # ln 2048 = 7.62
    assert any(line.startswith(f"validation loss {metrics['eval/loss']:.3f}") for line in first)
    model = Path(tmp_path, found["model (Hugging Face)"])
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in model.iterdir()}
    again = run(script)
    assert again[0] == "every step was a hit: 6 steps, nothing to run"
    assert again[1:] == first[1:]
