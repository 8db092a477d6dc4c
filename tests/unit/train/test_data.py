"""`ponente data`: the batch that training will see, as text, and how large everything is."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ponente.batches.rows import RowPolicy
from ponente.config.errors import RefusedError, UserError
from ponente.models.families import lm_families
from ponente.store.sources import UrlSourceConfig
from ponente.tokens.formats import ChatFormat, PrebuiltFormat, SupervisedFormat, TextFormat
from ponente.tokens.formats.format import TokenFormat
from ponente.train.data.caches import open_data
from ponente.train.data.config import Pack, TrainComponentConfig
from ponente.train.data.inspect import Look, inspect
from ponente.train.data.settings import PASSED_OVER, load_settings
from ponente.train.data.stats import stats

SINGLE = RowPolicy(packing="single", over_length="error")
PACKED = RowPolicy(packing="packed")
CONCATENATED = RowPolicy()


@pytest.mark.parametrize(
    ("row_format", "pack", "policy"),
    [
        (TextFormat(), None, CONCATENATED),
        (TextFormat(), False, CONCATENATED),
        (TextFormat(), True, PACKED),
        (TextFormat(), 5, RowPolicy(packing="packed", max_documents=5)),
        (TextFormat(), "pad", SINGLE),
        (ChatFormat(), None, PACKED),
        (ChatFormat(pack=False), None, SINGLE),
        (ChatFormat(pack=False), True, PACKED),
        (ChatFormat(pack=7), None, RowPolicy(packing="packed", max_documents=7)),
        (ChatFormat(), "concat", CONCATENATED),
        (SupervisedFormat(), None, PACKED),
        (SupervisedFormat(), False, SINGLE),
        (PrebuiltFormat(), None, SINGLE),
        (PrebuiltFormat(), "concat", CONCATENATED),
        (PrebuiltFormat(), True, PACKED),
    ],
)
def test_how_documents_become_rows(row_format: TokenFormat, pack: Pack | None, policy: RowPolicy) -> None:
    source = UrlSourceConfig(train_urls=["x.jsonl"])
    assert TrainComponentConfig(source=source, format=row_format, pack=pack).row_policy() == policy


def test_a_policy_for_long_documents_goes_before_the_default() -> None:
    source = UrlSourceConfig(train_urls=["x.jsonl"])
    assert TrainComponentConfig(source=source, pack=True, over_length="drop").row_policy().over_length == "drop"
    assert TrainComponentConfig(source=source, pack="pad", over_length="drop").row_policy().over_length == "drop"
    with pytest.raises(RefusedError, match="found pack: -1; needed"):
        TrainComponentConfig(source=source, pack=-1).row_policy()


def shown(config: Path, step: int, *flags: str, **look: int | bool) -> str:
    return "\n".join(inspect(load_settings(str(config), flags), step, Look(**look)))  # type: ignore[arg-type]


def test_inspect_shows_the_counts_of_the_mixture_and_each_row(config: Path) -> None:
    text = shown(config, 5, rows=8, tokens=0)
    assert text.startswith("step 5: 8 rows of 64 tokens, from example 40 on\n")
    counts = re.findall(r"^  (web|chat) +(\d) +(\d+)", text, re.MULTILINE)
    assert [name for name, _, _ in counts] == ["web", "chat"]
    assert sum(int(here) for _, here, _ in counts) == 8
    assert sum(int(so_far) for _, _, so_far in counts) == 48
    assert len(re.findall(r"^row \d: ", text, re.MULTILINE)) == 8


def test_inspect_marks_what_the_loss_does_not_count(config: Path) -> None:
    text = shown(config, 0, "--data.train_weights", "{chat: 1}", "--data.shuffle", "false", rows=1, tokens=0)
    assert re.search(
        r"── document 1 of the row, \d+ tokens\n⟦<\|user\|>Wind 0\?<\|endoftext\|>\n<\|assistant\|>⟧Ponente", text
    )
    assert re.search(r"── document 2 of the row", text)
    assert re.search(r"── \d+ tokens of padding$", text)
    colored = shown(config, 0, "--data.train_weights", "{chat: 1}", rows=1, has_color=True)
    assert "\x1b[2;31m<|user|>" in colored
    assert "⟦" not in colored


def test_inspect_shows_no_more_than_it_is_asked_for(config: Path) -> None:
    text = shown(config, 0, "--data.train_weights", "{web: 1}", rows=2, tokens=10)
    assert len(re.findall(r"── … (\d+) more tokens of the row \(--tokens 0 shows all\)", text)) == 2


def test_the_same_step_shows_the_same_and_another_something_else(config: Path) -> None:
    first = shown(config, 3, rows=8, tokens=0)
    assert shown(config, 3, rows=8, tokens=0) == first
    assert shown(config, 4, rows=8, tokens=0) != first
    assert shown(config, 3, "--data_seed", "9", rows=8, tokens=0) != first


def test_control_characters_of_the_data_never_reach_the_terminal(tiny_tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "evil.jsonl").write_text('{"text": "a\\u001b[31mb\\u0007\\u009bc\\n"}\n')
    flags = ["--data.tokenizer", tiny_tokenizer, "--data.cache_dir", str(tmp_path / "c"), "--train_seq_len", "32"]
    flags += ["--data.train_urls", str(tmp_path / "evil.jsonl"), "--trainer.train_batch_size", "1"]
    text = "\n".join(inspect(load_settings(None, flags), 0, Look(tokens=0)))
    assert "a␛[31mb␇\\x9bc" in text
    assert "\x1b" not in text


def test_stats_show_sizes_and_what_the_run_takes(config: Path) -> None:
    lines = list(stats(load_settings(str(config), ["--data.mixture_block_size", "32"])))
    sizes, given, run = "\n".join(lines).split("\n\n")
    cells = [{line.split()[0]: line.split()[1:] for line in part.splitlines()[1:]} for part in (sizes, given, run)]
    assert [cells[0][name][0] for name in ("web/train", "chat/train", "web/validation")] == ["600", "30", "600"]
    assert cells[1]["web/train"][2:] == ["100.0%", "100.0%"]
    counted = float(cells[1]["chat/train"][3].rstrip("%"))
    assert 10 < counted < 50  # what the assistant says
    assert "  chat is evaluated under: sft, winds" in lines
    assert "a run of 40 steps takes 320 rows, 20,480 tokens with padding:" in lines
    assert cells[2]["web"][:3] == ["0.75", "75.00%", "240"]
    assert cells[2]["chat"][:3] == ["0.25", "25.00%", "80"]


def test_a_run_is_as_long_as_its_config_says(config: Path) -> None:
    for flags, expected in [
        (["--trainer.num_train_steps", "7"], "a run of 7 steps takes 56 rows"),
        (
            ["--trainer", "{train_batch_size: 4, num_train_tokens: 1000}"],
            "a run of 4 steps takes 16 rows, 1,024",
        ),
        (["--data.stop_strategy", "first_exhausted", "--data.train_weights", "{chat: 1}"], "a run of 2 steps"),
    ]:
        assert any(line.startswith(expected) for line in stats(load_settings(str(config), flags))), (flags, expected)


def test_two_lengths_of_a_run_are_refused(config: Path) -> None:
    with pytest.raises(RefusedError, match=r"num_train_steps: 40 and .*num_train_tokens: 5; needed at most one"):
        list(stats(load_settings(str(config), ["--trainer.num_train_tokens", "5"])))


def test_a_dataset_with_weight_zero_is_named(config: Path) -> None:
    lines = list(stats(load_settings(str(config), ["--data.train_weights", "{web: 1, chat: 0}"])))
    assert lines[-1] == "not trained on (weight 0): chat"


def test_rows_are_as_long_as_the_model_unless_told_otherwise(config: Path) -> None:
    lengths = {
        flag: load_settings(str(config), flags).shape().length
        for flag, flags in {
            "the file": [],
            "--model.seq_len": ["--model.seq_len", "32"],
            "--train_seq_len": ["--train_seq_len", "48"],
            "gpt2": ["--model", "{type: gpt2}"],
            "nothing": ["--model", "{}"],
        }.items()
    }
    assert lengths == {"the file": 64, "--model.seq_len": 32, "--train_seq_len": 48, "gpt2": 1024, "nothing": 2048}


def test_caches_are_not_built_where_that_is_forbidden(config: Path) -> None:
    settings = load_settings(str(config), ["--data.auto_build_caches", "false"])
    with pytest.raises(UserError, match=r"found no token cache at .*web/train; needed a finished one"):
        open_data(settings.data)


@pytest.mark.parametrize("shuffle", ["false", "131072"])
def test_training_may_begin_while_a_cache_is_being_built(config: Path, shuffle: str) -> None:
    data = load_settings(str(config), ["--data.shuffle", shuffle]).data
    opened = open_data(data, beside_training=True)
    web, chat = opened.train["web"], opened.train["chat"]
    assert web.on_wait is not None
    assert web.cache.tokens > 0
    assert chat.on_wait is None  # packed: it had to be finished first
    assert chat.cache.is_finished
    assert list(opened.validation) == ["web"]


@pytest.mark.parametrize("shuffle", [(), ("--data.shuffle", "true"), ("--data.shuffle", "{io_block_size: 8}")])
def test_an_order_that_needs_the_whole_cache_waits_for_it(config: Path, shuffle: tuple[str, ...]) -> None:
    opened = open_data(load_settings(str(config), shuffle).data, beside_training=True)
    assert opened.train["web"].on_wait is None
    assert opened.train["web"].cache.is_finished


def test_unknown_keys_are_still_errors(config: Path) -> None:
    with pytest.raises(UserError, match=r"data.shufle.*Write shuffle"):
        load_settings(str(config), ["--data.shufle", "true"])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("true", {"kind": "full", "permutation": "feistel"}),
        ("false", {"kind": "in_order"}),
        ("500", {"kind": "era", "era": 500, "permutation": "feistel"}),
        ("{io_block_size: 8, perm_type: linear}", {"kind": "block", "io_block_size": 8, "permutation": "linear"}),
    ],
)
def test_every_way_to_write_shuffle_is_understood(config: Path, value: str, kind: dict[str, object]) -> None:
    settings = load_settings(str(config), ["--data.shuffle", value])
    record = settings.training_data(open_data(settings.data)).record()["web"]
    assert {key: record.get(key) for key in kind} == kind


def test_keys_of_the_data_section_reach_the_batches(config: Path) -> None:
    def shape(*flags: str) -> tuple[bool, int]:
        found = load_settings(str(config), flags).shape()
        return found.blocks_documents, found.max_documents

    assert shape() == (True, 32)
    assert shape("--data.block_cross_document_attention", "false") == (False, 32)
    assert shape("--data.max_documents_per_row", "9", "--train_seq_len", "8192") == (True, 9)
    assert shape("--train_seq_len", "8192") == (True, 128)
    with pytest.raises(RefusedError, match="max_documents_per_row: 1; needed 2 or more"):
        shape("--data.max_documents_per_row", "1")


def test_a_dataset_for_validation_alone_may_have_weight_zero_and_no_other(config: Path) -> None:
    flags = ["--data.components.web.source.train_urls", "[]"]
    settings = load_settings(str(config), [*flags, "--data.train_weights", "{chat: 1, web: 0}"])
    opened = open_data(settings.data)
    assert (list(opened.train), list(opened.validation)) == (["chat"], ["web"])
    assert [one.name for one in settings.training_data(opened).stream.datasets] == ["chat"]
    with pytest.raises(RefusedError, match=r"found data.train_weights.web; needed one .* with a train split: chat"):
        load_settings(str(config), flags).training_data(opened)


def test_staged_weights_and_batch_sizes_are_read_from_yaml(config: Path) -> None:
    flags = ["--data.train_weights", "[[0, {web: 1}], [5, {chat: 1}]]"]
    flags += ["--trainer.train_batch_size", "[{start: 0, value: 2}, {start: 3, value: 4}]"]
    settings = load_settings(str(config), flags)
    stream = settings.training_data(open_data(settings.data)).stream
    origins = [(len(one.dataset), set(one.dataset.tolist())) for one in map(stream.origin, (2, 3, 4, 5))]
    assert origins == [(2, {0}), (4, {0}), (4, {0}), (4, {1})]


def lines_of(config: Path, *flags: str) -> list[str]:
    return list(stats(load_settings(str(config), flags)))


@pytest.mark.parametrize(
    "flags",
    [
        ["--trainer", "{train_batch_size: 8, num_train_epochs: 9}"],
        ["--trainer", "{train_batch_size: 8, num_train_tokens: 1000000}"],
        ["--trainer", "{train_batch_size: 8, num_train_steps: 1000}"],
    ],
)
def test_no_run_is_longer_than_its_data_and_none_counts_padding(
    config: Path, flags: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    stop = ["--data.stop_strategy", "first_exhausted", "--data.train_weights", "{chat: 1}"]
    run = [line for line in lines_of(config, *flags, *stop) if re.match("a run|  chat +1 ", line)]
    rows = int(run[-1].split()[3])
    assert run[0].startswith(f"a run of {-(-rows // 8)} steps takes {rows} rows")
    assert run[-1].split()[3:5] == [str(rows), "1.00"]
    assert "the data last" in caplog.text


def test_a_dataset_that_loses_all_its_rows_is_named(config: Path) -> None:
    drop = ["--data.components.chat.over_length", "drop", "--train_seq_len", "4"]
    with pytest.raises(RefusedError, match=r"found no row to train on in chat .*30 documents"):
        lines_of(config, *drop)
    assert any(line.startswith("  chat/train") for line in lines_of(config, *drop, "--data.train_weights", "{web: 1}"))


def test_a_policy_that_cannot_be_met_is_told_beside_the_lengths(config: Path) -> None:
    flags = ["--data.components.chat.pack", "pad", "--train_seq_len", "4", "--data.train_weights", "{web: 1}"]
    lines = lines_of(config, *flags)
    assert any(re.match(r"  chat/train: found 30 documents of .* longer than a row of 5", line) for line in lines)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trainer.num_train_step", "5"], "Write num_train_steps"),
        (["--trainer.train_batchsize", "5"], "Write train_batch_size"),
        (["--model.seqlen", "5"], "Write (max_)?seq_len"),
        (["--train_seq_len", "0"], "found rows of 0 tokens; needed 2 or more"),
        (["--trainer.num_train_steps", "-3"], "num_train_steps: -3; needed 1 or more"),
        (["--data.components.chat.pack", "0"], "found pack: 0; needed true, false, concat, pad"),
        (["--data.components.web.over_length", "drop"], "found over_length: drop for a dataset whose documents"),
        (["--data.permutation_type", "linear", "--data.shuffle", "{io_block_size: 4}"], "needed one of them"),
        (["--data.train_weights", "{web: 1, chats: 1}"], "found data.train_weights.chats; .* Write chat"),
        (["--data.components.chat.pack", "9", "--data.max_documents_per_row", "5"], "needed room for 9 documents"),
        (["--data.components", "{v: {source: {validation_urls: [x.jsonl]}}}"], "no dataset with a train split"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_built(config: Path, flags: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lines_of(config, *flags)
    assert not (config.parent / "caches").exists()


def test_a_number_of_documents_a_row_makes_room_for_them(config: Path) -> None:
    assert load_settings(str(config), ["--data.components.chat.pack", "200"]).shape().max_documents == 201


def test_a_permutation_may_be_chosen_for_the_default_order(config: Path) -> None:
    settings = load_settings(str(config), ["--data.permutation_type", "linear"])
    assert str(settings.data.order()) == "blocks of 256 in windows of 512, linear"


def test_one_dataset_or_a_validation_set_may_be_looked_at(config: Path) -> None:
    def look(**kinds: str) -> str:
        settings = load_settings(str(config), ["--data.num_validation_sequences", "{chat: 3}"])
        return "\n".join(inspect(settings, 0, Look(rows=8, **kinds)))  # type: ignore[arg-type]

    only_chat = re.findall(r"^row \d+: (\w+)", look(dataset="chat"), re.MULTILINE)
    assert set(only_chat) == {"chat"}
    validation = look(split="validation", dataset="web")
    assert re.search(r"row 0: web, its row 0, epoch 0", validation)
    held_out = look(split="validation", dataset="chat")
    assert re.search(r"row 2: chat", held_out)
    assert "row 3: padding" in held_out
    with pytest.raises(RefusedError, match="found --dataset wind; needed one that is trained on: web, chat"):
        look(dataset="wind")


def test_a_step_behind_the_end_of_the_run_is_remarked(config: Path) -> None:
    assert "the run ends before, after 40 steps" in shown(config, 40)
    assert "the run ends before" not in shown(config, 39)


def test_datasets_that_need_a_whole_cache_are_built_before_training(config: Path) -> None:
    flags = ["--data.num_validation_sequences", "{web: 2}", "--data.cache_dir", str(config.parent / "others")]
    settings = load_settings(str(config), flags)
    opened = open_data(settings.data, beside_training=True)
    assert opened.train["web"].cache.is_finished
    assert settings.training_data(opened).stream.datasets[0].length > 0


def test_no_key_of_a_model_keeps_batches_from_being_shown() -> None:
    """`ponente data` reads training configs without JAX, and so without the families' own fields."""
    keys = {f"model.{field.name}" for family in lm_families().values() for field in fields(family)}
    assert keys - set(PASSED_OVER) == {"model.max_seq_len"}
