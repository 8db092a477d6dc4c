"""What a run would take: exact where it follows from shapes, and refused where no such hardware is known."""

import re
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from ponente.cli import main
from ponente.config.errors import RefusedError, UserError
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.train.beginning import abstract_state_of
from ponente.train.compiling import lower_step
from ponente.train.config import TrainConfig, load_train_config
from ponente.train.estimate import estimate, estimate_lines
from ponente.train.fitting import GIB, Need
from ponente.train.hardware import hardware
from ponente.train.setup import set_up_model

SIZES = {
    "7b": "hidden_dim: 4096, intermediate_dim: 11008, num_layers: 32, num_heads: 32, num_kv_heads: 32",
    "70b": "hidden_dim: 8192, intermediate_dim: 28672, num_layers: 80, num_heads: 64, num_kv_heads: 8",
    "tiny": "hidden_dim: 32, intermediate_dim: 64, num_layers: 2, num_heads: 4, num_kv_heads: 4",
}


def config(folder: Path, name: str, *flags: str, rows: int = 64) -> TrainConfig:
    file = folder / "config.yaml"
    file.write_text(f"""
data: {{tokenizer: passthrough, vocab_size: 32000, components: {{text: {{source: {{train_urls: [none.jsonl]}}}}}}}}
model: {{type: llama, max_seq_len: {64 if name == "tiny" else 4096}, {SIZES[name]}}}
trainer: {{train_batch_size: {rows}, num_train_steps: 1000, mp: "p=f32,c=bfloat16"}}
""")
    return load_train_config(str(file), list(flags)).config


def test_neither_data_nor_a_tokenizer_need_be_there_where_the_number_of_ids_is_said(tmp_path: Path) -> None:
    given = config(tmp_path, "7b")
    elsewhere = replace(given, data=replace(given.data, tokenizer=str(tmp_path / "nowhere")))
    assert estimate(elsewhere, hardware("8xh100")) == estimate(given, hardware("8xh100"))
    unsaid = replace(elsewhere, data=replace(elsewhere.data, vocab_size=None))
    with pytest.raises(UserError, match="nowhere"):
        estimate(unsaid, hardware("8xh100"))


@pytest.mark.parametrize("name", ["7b", "70b"])
def test_the_state_of_one_of_8_devices_is_an_eighth_by_the_compiler_s_account(name: str, tmp_path: Path) -> None:
    one_row = ("--trainer.per_device_parallelism", "1", "--trainer.mesh.axes", "{data: 8}")
    given = config(tmp_path, name, *one_row, rows=8)
    model = set_up_model(given)
    state = abstract_state_of(model, given.optimizer.build(model.parameters, 1000))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    found = Need.of(lower_step(given).compile())
    assert whole / 8 < found.state <= 1.05 * whole / 8
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.model))
    assert found.temporary < 2 * weights  # no device makes all of them whole, in 16 bits, at a time
    planned = estimate(given, hardware("8xh100")).memory
    assert planned.weights + planned.optimizer == pytest.approx(found.state, rel=0.001)


def test_numbers_of_a_known_model(tmp_path: Path) -> None:
    found = estimate(config(tmp_path, "7b"), hardware("v5p-128"))
    assert found.parameters == 6_738_415_616
    assert found.flops_per_token == pytest.approx(6 * (6_738_415_616 - 32_000 * 4096) + 6 * 32 * 4096 * 4096, rel=0.001)
    assert (found.mesh["data"], found.rows_at_once) == (64, 1)
    assert found.memory.weights == pytest.approx(6_738_415_616 * 4 / 64, rel=0.001)
    assert found.memory.optimizer == pytest.approx(6_738_415_616 * 8 / 64, rel=0.001)
    assert found.tokens_a_second == pytest.approx(0.5 * 64 * 459e12 / found.flops_per_token)
    assert found.fits


def test_auto_takes_as_many_rows_as_would_fit(tmp_path: Path) -> None:
    rows = {
        name: estimate(config(tmp_path, "7b", "--trainer.per_device_parallelism", "auto", rows=512), hardware(name))
        for name in ("8xh100", "8xb200", "8xl40s", "h100")
    }
    at_once = {name: one.rows_at_once for name, one in rows.items()}
    assert at_once["8xl40s"] < at_once["8xh100"] < at_once["8xb200"] == 64
    assert [one.fits for one in rows.values()] == [True, True, True, False]


def test_the_estimate_is_told_in_words(tmp_path: Path) -> None:
    text = "\n".join(estimate_lines(config(tmp_path, "7b"), "8xH100", mfu=0.4, price=2.0))
    assert "parameters          6,738,415,616" in text
    assert "hardware            8xH100: 8 x 80 GiB; mesh: data 8" in text
    hours, cost = re.findall(r"([\d,.]+) hours of devices|about \$([\d,]+)", text)
    assert float(cost[1].replace(",", "")) == pytest.approx(2 * float(hours[0].replace(",", "")), abs=2)
    assert "does NOT fit" in "\n".join(estimate_lines(config(tmp_path, "70b"), "1xh200"))


def test_connections_are_supposed_to_take_a_tenth_of_the_speed(tmp_path: Path) -> None:
    plain = config(tmp_path, "tiny")
    speeds = []
    for model in (MuddConfig(dense_conn=False), MuddConfig(), MuddPythiaConfig()):
        small = replace(model, max_seq_len=64, hidden_dim=64, intermediate_dim=128, num_layers=2, num_heads=2)
        given = replace(plain, model=small)
        assert estimate(given, hardware("h100"), mfu=0.3).mfu == 0.3
        speeds.append(estimate(given, hardware("h100")).mfu)
    assert speeds == pytest.approx([0.5, 0.45, 0.45])


def test_on_these_devices_the_step_is_compiled(tmp_path: Path) -> None:
    text = "\n".join(estimate_lines(config(tmp_path, "tiny"), ""))
    assert "; mesh: one device" in text  # as a run has it: CPUs are not split unless that is asked for
    assert re.search(r"compiled here       a step needs 0\.\d\d GiB", text)
    assert "cost" not in text


def test_hardware_is_known_by_its_usual_names() -> None:
    assert [hardware(name).devices for name in ("h100", "8xh100", "16 x H200", "v5p-128", "v4-8", "v6e-8")] == [
        *(1, 8, 16, 64, 4, 8)
    ]
    assert hardware("1xh200").memory == pytest.approx(131.3 * GIB, rel=0.01)


def test_hours_are_those_of_all_batch_sizes(tmp_path: Path) -> None:
    given = config(tmp_path, "tiny", "--trainer.train_batch_size", "[{start: 0, value: 8}, {start: 600, value: 64}]")
    found = estimate(given, hardware("h100"))
    assert found.tokens == (600 * 8 + 400 * 64) * 64
    assert estimate(config(tmp_path, "tiny", "--epoch", "2"), hardware("h100")).steps is None


@pytest.mark.parametrize("name", ["h101", "0xh100", "v5p-3", "v5p", "8x"])
def test_other_hardware_is_refused_with_what_is_known(name: str) -> None:
    with pytest.raises(RefusedError, match=r"found hardware .*needed .*8xh100.*v5p-128"):
        hardware(name)


def test_the_command_prints_the_estimate_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, "7b")
    given = ["train", "--config_path", str(tmp_path / "config.yaml")]

    def code(*flags: str) -> object:
        with pytest.raises(SystemExit) as ended:
            main([*given, *flags])
        return ended.value.code

    assert code("--estimate", "8xh100", "--mfu", "0.4", "--price", "2") == 0
    out = capsys.readouterr().out
    assert "at 40% of the peak" in out and "at $2.00 an hour" in out
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    for flags, found in ((("--mfu", "0.4"), "without --estimate"), (("--estimate", "h100", "--mfu", "50"), "--mfu 50")):
        assert code(*flags) == 2
        assert found in capsys.readouterr().err
