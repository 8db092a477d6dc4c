"""Both Levanter schemas to ours: each spelling has one meaning, in files and in flags."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ponente.config.document import read_document
from ponente.config.flags import parse_flags
from ponente.config.left_out import LEFT_OUT
from ponente.config.problems import ConfigError
from ponente.config.rewrite import rewrite

SEED = sorted((Path(__file__).resolve().parents[4] / "shared" / "seeds").glob("002*.txt"))
A, MAIN = "data.components.a", "data.components.main"
URLS = {"train_urls": ["t.{1..32}.jsonl.gz"], "validation_urls": ["v.jsonl.gz"]}


def ours(text: str, *flags: str) -> dict[str, Any]:
    raw = yaml.safe_load(text)
    return rewrite(raw, *parse_flags(flags, raw)).raw


def error_of(*layers: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        rewrite(*layers)
    assert re.fullmatch(r"found .+; needed .+\. [A-Z].+\.", str(caught.value), re.DOTALL)
    return str(caught.value)


def main_of(raw: dict[str, Any]) -> Any:
    assert list(raw["data"]["components"]) == ["main"]
    return raw["data"]["components"]["main"]


# ---- data


def test_one_dataset_inline_becomes_the_component_main_in_the_cache_dir_itself() -> None:
    raw = rewrite({"data": {**URLS, "cache_dir": "gs://c", "tokenizer": "gpt2", "shuffle": True}}).raw
    assert raw == {
        "data": {
            "cache_dir": "gs://c",
            "tokenizer": "gpt2",
            "shuffle": True,
            "components": {"main": {"source": {"type": "url", **URLS}, "cache_dir": "gs://c"}},
        }
    }


def test_a_hub_dataset_inline_is_an_hf_source() -> None:
    hub = {"id": "EleutherAI/pile", "name": "subset", "revision": "abc", "stream": True, "splits": ["train"]}
    main = main_of(rewrite({"data": hub}).raw)
    del hub["splits"]
    assert main == {"source": {"type": "hf", **hub, "split_names": {"train": "train"}}, "cache_dir": "cache/"}


def test_text_key_is_the_key_of_a_text_format() -> None:
    assert main_of(rewrite({"data": {**URLS, "text_key": "body"}}).raw)["format"] == {
        "type": "text",
        "text_key": "body",
    }
    kept = {"type": "mine", "text_key": "body"}
    assert main_of(rewrite({"data": {**URLS, "format": kept}}).raw)["format"] == kept


def test_format_pack_and_tags_of_an_inline_dataset_go_with_it() -> None:
    main = main_of(rewrite({"data": {**URLS, "format": {"type": "chat"}, "pack": 8, "tags": ["x"]}}).raw)
    assert (main["format"], main["pack"], main["tags"]) == ({"type": "chat"}, 8, ["x"])


L25 = """
data:
  configs:
    web: {train_urls: [w.jsonl], text_key: content, tags: [en], cache_dir: c/web}
    hub: {id: org/set, name: sub, format: {type: chat, messages_key: turns}}
  train_weights: {web: 0.7, hub: 0.3}
  cache_dir: c
  tokenizer: gpt2
model: {type: llama, seq_len: 128}
trainer:
  wandb: {project: p, tags: [a]}
  profiler: true
  profiler_start_step: 7
  profiler_num_steps: 3
  model_axis_size: 2
  fsdp_axis: embed
optimizer: {learning_rate: 1.0e-4, decay: 0.2}
"""
L26 = """
data:
  components:
    web:
      type: cached
      source: {type: url, train_urls: [w.jsonl]}
      format: {type: text, text_key: content}
      tags: [en]
      cache_dir: c/web
    hub:
      source: {type: hf, id: org/set, name: sub}
      format: {type: chat, messages_field: turns}
  train_weights: {web: 0.7, hub: 0.3}
  cache_dir: c
  tokenizer: gpt2
model: {type: llama, max_seq_len: 128}
trainer:
  tracker: {type: wandb, project: p, tags: [a]}
  profiler: {enabled: true, start_step: 7, num_steps: 3}
  mesh: {axes: {model: 2}, param_mapping: {embed: data}}
optimizer: {learning_rate: 1.0e-4, decay: 0.2}
"""


def test_both_schemas_come_to_the_same_tree() -> None:
    rewritten = rewrite(yaml.safe_load(L25))
    assert rewritten.raw == rewrite(yaml.safe_load(L26)).raw and rewritten.warnings == ()
    expected = yaml.safe_load(L26)
    del expected["data"]["components"]["web"]["type"]
    assert rewritten.raw == expected


def test_a_component_may_be_written_flat_in_the_new_schema_too() -> None:
    assert rewrite({"data": {"components": {"a": {"train_urls": ["x"]}}}}).raw["data"]["components"] == {
        "a": {"source": {"type": "url", "train_urls": ["x"]}}
    }


def test_a_source_of_the_users_own_keeps_its_type_and_keys() -> None:
    mine = {"type": "mine", "id": 5, "train_urls": ["x"], "stream": True}
    assert rewrite({"data": {"components": {"a": {"source": mine}}}}).raw["data"]["components"]["a"]["source"] == mine


def test_one_dataset_inline_beside_a_mixture_is_refused() -> None:
    for name in ("configs", "components"):
        text = error_of({"data": {"train_urls": ["x"], name: {"web": {"train_urls": ["y"]}}}})
        assert "data.train_urls" in text or "data.source" in text
        assert "Move the dataset into data.components" in text
    text = error_of({"data": {"components": {"web": {"id": "x"}}}}, *parse_flags(["--data.train_urls", "x"]))
    assert "data.train_urls (flag --data.train_urls) beside" in text


def test_a_dataset_inline_without_anything_to_read_is_refused_by_the_keys_that_users_know() -> None:
    said = error_of({"data": {"format": {"type": "prebuilt"}}})
    assert "data.format" in said and "Add data.train_urls" in said
    assert "components" not in said


def test_files_beside_a_hub_dataset_are_refused_unless_they_are_empty() -> None:
    text = error_of({"data": {"id": "org/set", "validation_urls": ["v.jsonl"]}})
    assert "make two components of them" in text.lower()
    nulls = {"id": None, "name": None, "train_urls": ["x"]}
    assert main_of(rewrite({"data": nulls}).raw)["source"] == {"type": "url", "train_urls": ["x"]}
    empty = {"id": "org/set", "train_urls": [], "validation_urls": None}
    assert main_of(rewrite({"data": empty}).raw)["source"] == {"type": "hf", "id": "org/set"}


def test_what_means_nothing_beside_urls_is_left_out_with_a_warning() -> None:
    rewritten = rewrite({"data": {"train_urls": ["x"], "stream": True}})
    assert "stream" not in main_of(rewritten.raw)["source"]
    assert len(rewritten.warnings) == 1 and "data" in rewritten.warnings[0] and "URLs" in rewritten.warnings[0]


def test_a_source_that_says_its_type_is_left_as_it_is() -> None:
    source = {"type": "url", "train_urls": ["x"], "stream": True}
    rewritten = rewrite({"data": {"components": {"a": {"source": source}}}})
    assert rewritten.raw["data"]["components"]["a"]["source"] == source and rewritten.warnings == ()


def test_empty_components_are_no_mixture() -> None:
    for empty in (None, {}):
        assert main_of(rewrite({"data": {"id": "x", "components": empty}}).raw)["source"]["id"] == "x"


def test_components_that_read_no_source_are_refused() -> None:
    assert "'direct'" in error_of({"data": {"components": {"a": {"type": "direct"}}}})


def test_chat_keys_are_renamed_in_chat_formats_alone() -> None:
    for format in ({"type": "chat", "messages_key": "m"}, {"messages_key": "m"}):
        rewritten = main_of(rewrite({"data": {**URLS, "format": format}}).raw)
        assert rewritten["format"]["messages_field"] == "m" and "messages_key" not in rewritten["format"]
    mine = {"type": "mine", "messages_key": "m"}
    assert main_of(rewrite({"data": {**URLS, "format": mine}}).raw)["format"] == mine


# ---- flags over a file


def test_a_flag_replaces_what_an_inline_file_says() -> None:
    text = "data: {train_urls: [a], validation_urls: [v], cache_dir: c, text_key: body}"
    raw = ours(text, "--data.train_urls", "[b]", "--data.cache_dir", "d", "--data.text_key", "t")
    assert raw["data"]["cache_dir"] == "d"
    assert main_of(raw) == {
        "source": {"type": "url", "train_urls": ["b"], "validation_urls": ["v"]},
        "format": {"type": "text", "text_key": "t"},
        "cache_dir": "d",
    }


@pytest.mark.parametrize(
    ("text", "flag", "path"),
    [
        ("model: {max_seq_len: 2048}", "--model.seq_len", "model.max_seq_len"),
        ("model: {seq_len: 2048}", "--model.max_seq_len", "model.max_seq_len"),
        ("model: {seq_len: 2048}", "--model.seq-len", "model.max_seq_len"),
        ("trainer: {profiler: {num_steps: 1}}", "--trainer.profiler_num_steps", "trainer.profiler.num_steps"),
        ("trainer: {profiler_num_steps: 1}", "--trainer.profiler.num_steps", "trainer.profiler.num_steps"),
        ("trainer: {tracker: {type: wandb, project: p}}", "--trainer.wandb.project", "trainer.tracker.project"),
        ("trainer: {wandb: {project: p}}", "--trainer.tracker.project", "trainer.tracker.project"),
        ("optimizer: {cooldown: 1}", "--optimizer.decay", "optimizer.decay"),
        ("data: {configs: {a: {text_key: x}}}", "--data.components.a.format.text_key", f"{A}.format.text_key"),
        ("data: {components: {a: {format: {text_key: x}}}}", "--data.configs.a.text_key", f"{A}.format.text_key"),
        ("data: {components: {a: {source: {id: x}}}}", "--data.configs.a.id", f"{A}.source.id"),
        ("data: {components: {a: {id: x}}}", "--data.components.a.source.id", f"{A}.source.id"),
        ("data: {id: y, format: {messages_key: x}}", "--data.format.messages_field", f"{MAIN}.format.messages_field"),
    ],
)
def test_a_flag_wins_whichever_of_a_settings_names_each_side_uses(text: str, flag: str, path: str) -> None:
    raw: Any = ours(text, flag, "7")
    for part in path.split("."):
        raw = raw[part]
    assert raw == 7


def test_the_last_flag_wins_over_another_name_of_the_same_setting() -> None:
    assert ours("{}", "--model.seq_len", "1", "--model.max_seq_len", "2") == {"model": {"max_seq_len": 2}}
    raw = ours("{}", "--trainer.profiler", "--trainer.profiler.num_steps", "5")
    assert raw == {"trainer": {"profiler": {"enabled": True, "num_steps": 5}}}


def test_a_flag_of_the_other_kind_of_source_replaces_the_source_with_a_warning() -> None:
    raw = {"data": {"id": "org/set", "stream": True}}
    rewritten = rewrite(raw, *parse_flags(["--data.train_urls", "[x]"]))
    assert main_of(rewritten.raw)["source"] == {"type": "url", "train_urls": ["x"]}
    assert "data.train_urls (flag --data.train_urls) takes the place of" in rewritten.warnings[0]
    hub = {"data": {"components": {"a": {"source": {"type": "hf", "id": "x"}}}}}
    replaced = rewrite(hub, *parse_flags(["--data.components.a.source.train_urls", "[y]"])).raw["data"]["components"]
    assert replaced == {"a": {"source": {"type": "url", "train_urls": ["y"]}}}
    kept = rewrite(hub, *parse_flags(["--data.components.a.source.type", "url"])).raw["data"]["components"]["a"]
    assert kept["source"] == {"type": "url", "id": "x"}  # which will be told to be unknown
    mine = {"data": {"components": {"a": {"source": {"type": "mine", "train_urls": ["x"]}}}}}
    kept = rewrite(mine, *parse_flags(["--data.components.a.train_urls", "[y]"])).raw["data"]["components"]["a"]
    assert kept["source"] == {"type": "mine", "train_urls": ["y"]}


def test_a_section_given_whole_by_a_flag_under_either_name_replaces_that_section_alone() -> None:
    text = "data: {tokenizer: t, configs: {a: {id: x}}}\ntrainer: {seed: 1, wandb: {project: p, mode: online}}"
    raw = ours(text, "--trainer.wandb", "{project: q}", "--data.configs", "{b: {id: y}}")
    assert raw["trainer"] == {"seed": 1, "tracker": {"type": "wandb", "project": "q"}}
    assert raw["data"] == {"tokenizer": "t", "components": {"b": {"source": {"type": "hf", "id": "y"}}}}
    text = "data: {tokenizer: t, train_urls: [x], text_key: body}"
    raw = ours(text, "--data.format", "{type: chat}")
    assert raw["data"]["tokenizer"] == "t" and main_of(raw)["format"] == {"type": "chat"}


def test_two_names_of_one_setting_in_one_file_must_agree() -> None:
    assert rewrite({"model": {"seq_len": 5, "max_seq_len": 5}}).raw == {"model": {"max_seq_len": 5}}
    text = error_of({"model": {"seq_len": 5, "max_seq_len": 6}})
    assert "model.seq_len = 5 beside model.max_seq_len = 6" in text
    error_of({"optimizer": {"cooldown": 1, "decay": True}})
    error_of({"trainer": {"wandb": {"project": "p"}, "tracker": {"type": "json"}}})
    error_of({"trainer": {"profiler": "often", "profiler_num_steps": 2}})


# ---- trainer, optimizer


def test_wandb_is_a_tracker() -> None:
    assert rewrite({"trainer": {"wandb": {"project": "p"}}}).raw == {
        "trainer": {"tracker": {"type": "wandb", "project": "p"}}
    }
    assert rewrite({"trainer": {"wandb": None}}).raw == {"trainer": {"tracker": None}}
    assert rewrite({"trainer": {"wandb": True}}).raw == {"trainer": {"tracker": {"type": "wandb"}}}
    assert "null" in error_of({"trainer": {"wandb": "off"}})


def test_a_flag_changes_one_of_several_trackers_or_replaces_one_of_another_type() -> None:
    several = "trainer: {tracker: [x, {type: json}, {type: wandb, project: p, mode: online}]}"
    assert ours(several, "--trainer.wandb.project", "q")["trainer"]["tracker"] == [
        "x",
        {"type": "json"},
        {"type": "wandb", "project": "q", "mode": "online"},
    ]
    assert ours(several, "--trainer.tracker", "{type: noop}")["trainer"]["tracker"] == {"type": "noop"}
    assert ours(several, "--trainer.tracker", "{type: wandb}")["trainer"]["tracker"] == {"type": "wandb"}
    one = "trainer: {tracker: {type: wandb, mode: online}}"
    assert ours(one, "--trainer.wandb.project", "q")["trainer"]["tracker"] == {
        "type": "wandb",
        "mode": "online",
        "project": "q",
    }
    one = "trainer: {tracker: {type: json, path: x}}"
    assert ours(one, "--trainer.wandb.project", "q")["trainer"]["tracker"] == {"type": "wandb", "project": "q"}


@pytest.mark.parametrize("value", [True, False])
def test_the_profiler_may_be_a_switch(value: bool) -> None:
    raw = {"trainer": {"profiler": value, "profiler_num_steps": 5}}
    assert rewrite(raw).raw == {"trainer": {"profiler": {"enabled": value, "num_steps": 5}}}


def test_what_was_rewritten_keeps_its_place() -> None:
    tree = rewrite(*parse_flags(["--trainer.profiler", "--trainer.wandb.project", "x", "--model.seq_len", "5"])).tree
    assert str(tree.place(("trainer", "profiler", "enabled"))) == "trainer.profiler (flag --trainer.profiler)"
    assert str(tree.place(("model", "max_seq_len"))) == "model.seq_len (flag --model.seq_len)"
    assert tree.place(("trainer", "tracker", "project")).where == "flag --trainer.wandb.project"
    several = {"trainer": {"tracker": [{"type": "wandb"}]}}
    tree = rewrite(several, *parse_flags(["--trainer.wandb.project", "x"])).tree
    assert tree.place(("trainer", "tracker", "0", "project")).where == "flag --trainer.wandb.project"


@pytest.mark.parametrize(
    ("flat", "mesh"),
    [
        ({"fsdp_axis": "embed"}, {"param_mapping": {"embed": "data"}}),
        ({"fsdp_axis": ["mlp", "vocab"]}, {"param_mapping": {"embed": None, "mlp": "data", "vocab": "data"}}),
        ({"fsdp_axis": None}, {"param_mapping": {"embed": None}}),
        ({"tensor_parallel_axes": ["mlp"]}, {"shared_mapping": {"heads": None, "mlp": "model", "vocab": None}}),
        ({"tensor_parallel_axes": None}, {"shared_mapping": {}}),
        ({"model_axis_size": None}, {"axes": {"model": 1}}),
        ({"mesh": None}, {}),
        ({"model_axis_size": 2, "replica_ici_axis_size": 4}, {"axes": {"model": 2, "replica": 4}}),
        (
            {"replica_dcn_axis_size": 2, "batch_axis": "batch"},
            {"dcn_axes": {"replica_dcn": 2}, "batch_axis_name": "batch"},
        ),
        (
            {"axis_resources": {"batch": "data", "mlp": "model"}, "parameter_axis_resources": {"embed": "data"}},
            {
                "compute_mapping": {"batch": "data"},
                "shared_mapping": {"mlp": "model"},
                "param_mapping": {"embed": "data"},
            },
        ),
        ({"mesh": {"axes": {"data": -1}}, "model_axis_size": 2}, {"axes": {"data": -1, "model": 2}}),
    ],
)
def test_parallelism_of_the_older_schema_is_a_mesh(flat: dict[str, Any], mesh: dict[str, Any]) -> None:
    assert rewrite({"trainer": flat}).raw == {"trainer": {"mesh": mesh}}


@pytest.mark.parametrize(
    ("file", "flags", "mesh"),
    [
        ({"mesh": {"axes": {"model": 4}}}, ["--trainer.mesh", "null"], {}),
        ({"mesh": {"axes": {"model": 4}}}, ["--trainer.model_axis_size", "null"], {"axes": {"model": 1}}),
        ({"fsdp_axis": ["mlp"]}, ["--trainer.fsdp_axis", "embed"], {"param_mapping": {"embed": "data"}}),
        ({"tensor_parallel_axes": ["mlp"]}, ["--trainer.tensor_parallel_axes", "null"], {"shared_mapping": {}}),
    ],
)
def test_a_flag_of_parallelism_wins_over_the_file(file: dict[str, Any], flags: list[str], mesh: dict[str, Any]) -> None:
    assert rewrite({"trainer": file}, *parse_flags(flags)).raw == {"trainer": {"mesh": mesh}}


def test_parallelism_that_is_said_twice_or_wrongly_is_told() -> None:
    twice = {"fsdp_axis": "mlp", "mesh": {"param_mapping": {"embed": "data"}}}
    assert "Remove fsdp_axis" in error_of({"trainer": twice})
    assert "trainer.axis_resources = 'data'" in error_of({"trainer": {"axis_resources": "data"}})
    rows = {"batch_axis": "rows", "axis_resources": {"rows": "data"}}
    assert rewrite({"trainer": rows}).raw["trainer"]["mesh"]["compute_mapping"] == {"rows": "data"}


def test_an_axis_that_is_no_name_is_told_with_its_place() -> None:
    assert "trainer.fsdp_axis = 3" in error_of({"trainer": {"fsdp_axis": 3}})


def test_cooldown_is_decay_with_a_warning() -> None:
    rewritten = rewrite({"optimizer": {"cooldown": 0.3}})
    assert rewritten.raw == {"optimizer": {"decay": 0.3}}
    assert rewritten.warnings == (
        "optimizer.cooldown is deprecated: it is read as optimizer.decay and will go. Write decay instead.",
    )


def test_flags_of_the_old_cache_command_are_understood() -> None:
    flags = ["--address", "ray://x", "--start_workers", "false", "--auto_start_cluster", "false"]
    rewritten = rewrite(*parse_flags(flags))
    assert rewritten.raw == {"cluster": "ray://x"} and len(rewritten.warnings) == 2


# ---- left out, refused


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.replace("*", "web").split(".")):
        value = {part: value}
    return value


def test_the_keys_of_the_specification_that_we_do_without_are_in_the_table() -> None:
    named = ["log_jaxprs", "log_xla_hlo", "flash_attention_block_size", "ray", "shutdown_at_exit", "cache_options"]
    named += ["allow_nondivisible_batch_size", "shuffle_before_trainval_split"]
    assert {path.rpartition(".")[2] for path in LEFT_OUT} >= set(named)


@pytest.mark.parametrize("path", LEFT_OUT)
def test_a_key_that_we_do_without_is_left_out_with_one_warning(path: str) -> None:
    rewritten = rewrite(nested(path, {"batch_size": None}))
    assert len(rewritten.warnings) == 1
    assert path.replace("*", "web") in rewritten.warnings[0] and "is left out: " in rewritten.warnings[0]
    assert path.rpartition(".")[2] not in str(rewritten.raw)


def test_a_key_that_we_do_without_warns_once_although_file_and_flags_name_it() -> None:
    flags = parse_flags(["--data.cache_options.batch_size", "5", "--data.cache_options.num_shard_groups", "6"])
    rewritten = rewrite({"data": {"cache_options": {"batch_size": 1}}}, *flags)
    assert len(rewritten.warnings) == 1
    assert "(flag --data.cache_options" in rewrite(*flags).warnings[0]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"data": {**URLS, "format": {"type": "preference_chat"}}}, ["data.format.type", "DPO", "type: chat"]),
        ({"data": {"configs": {"a": {"format": {"type": "preference_chat"}}}}}, ["preference_chat", "type: chat"]),
        ({"optimizer": {"type": "soap"}}, ["optimizer.type = 'soap'", "muon"]),
    ],
)
def test_a_key_that_is_refused_says_why_and_what_to_use(raw: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    text = error_of(raw)
    if "data.format" in words[0]:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(raw))
        text = error_of(read_document(str(tmp_path / "c.yaml")))
        assert f"{tmp_path}/c.yaml:3" in text
    assert all(word in text for word in words)


def test_all_refused_keys_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        rewrite({"optimizer": {"type": "soap"}, "data": {**URLS, "format": {"type": "preference_chat"}}})
    assert str(caught.value).startswith("2 problems") and "SOAP" in str(caught.value) and "DPO" in str(caught.value)


def test_what_quantization_has_no_use_for_is_left_out() -> None:
    given = {"fp8": True, "amax_history_length": 1024, "compute_dtype": "bfloat16"}
    rewritten = rewrite({"trainer": {"quantization": given}})
    assert rewritten.raw == {"trainer": {"quantization": {"fp8": True}}} and len(rewritten.warnings) == 2


# ---- what holds for every input


scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["wandb", "url", "hf", "chat", "x"])
KEYS = """
data model trainer optimizer configs components source format type id name train_urls validation_urls text_key
messages_key cache_dir cache_options seq_len max_seq_len wandb tracker profiler profiler_num_steps num_steps
cooldown decay quantization fp8 stream tags main other address
"""
names = st.sampled_from(KEYS.split())
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=4), max_leaves=25
)
data = st.fixed_dictionaries(
    {}, optional={name: trees for name in ("configs", "id", "train_urls", "format", "cache_dir")}
)
layers = st.dictionaries(names, trees, max_size=5) | st.fixed_dictionaries(
    {"data": data, "trainer": trees, "model": trees}
)


@given(st.lists(layers, min_size=1, max_size=3))
def test_rewriting_changes_no_input_and_what_it_has_written_stays(given_layers: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(given_layers)
    try:
        rewritten = rewrite(*given_layers)
    except ConfigError as error:
        assert "needed" in str(error)
        assert given_layers == before
        return
    assert given_layers == before
    result = copy.deepcopy(rewritten.raw)
    again = rewrite(rewritten.raw)
    assert again.raw == result and again.warnings == ()


@given(st.lists(layers, min_size=1, max_size=2))
def test_the_result_shares_nothing_with_its_input(given_layers: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(given_layers)
    try:
        raw = rewrite(*given_layers).raw
    except ConfigError:
        return
    stack: list[Any] = [raw]
    while stack:
        here = stack.pop()
        if isinstance(here, dict | list):
            stack += here.values() if isinstance(here, dict) else here
            here.clear()
    assert given_layers == before


@given(layers)
def test_keys_of_our_own_pass_through(raw: dict[str, Any]) -> None:
    own = {"data": {"tokenizer": "gpt2", "max_bad_records": 3}, "hf_upload": None, "z_loss_weight": 1e-4}
    try:
        together = rewrite(raw, own).raw
    except ConfigError:
        return
    assert together["data"]["tokenizer"] == "gpt2" and together["z_loss_weight"] == 1e-4 and "hf_upload" in together


# ---- the document that users come with


def seed_blocks() -> list[Any]:
    blocks = re.findall(r"```yaml\n(.*?)```", SEED[0].read_text(), re.DOTALL) if SEED else []
    return [pytest.param(block, id=block.split()[1]) for block in blocks] or [pytest.param("", marks=pytest.mark.skip)]


@pytest.mark.parametrize("block", seed_blocks())
def test_every_configuration_of_the_guide_reads_as_printed(block: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(block)
    rewritten = rewrite(read_document(str(tmp_path / "c.yaml")))
    assert rewritten.warnings == ()
    source = rewritten.raw.get("data", {}).get("components", {}).get("main", {}).get("source", {})
    assert ("data" in rewritten.raw) == (source.get("type") in ("url", "hf"))
    if "hf_save_steps" in rewritten.raw:
        assert rewritten.raw["optimizer"]["learning_rate"] == 1e-4
        assert rewritten.raw["model"]["max_seq_len"] == 1024
        assert rewritten.raw["trainer"]["tracker"] == {"type": "wandb", "project": "levanter", "tags": ["gpt2"]}
        assert rewritten.raw["data"]["components"]["main"]["cache_dir"] == "gs://path/to/cache"


def test_how_text_files_are_read_may_stand_beside_their_urls() -> None:
    flat = {"train_urls": ["a.txt"], "txt_unit": "document"}
    assert main_of(rewrite({"data": flat}).raw)["source"] == {"type": "url", **flat}
    configs = rewrite({"data": {"configs": {"plays": flat}}}).raw["data"]["components"]
    assert configs == {"plays": {"source": {"type": "url", **flat}}}
