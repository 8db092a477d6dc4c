"""The whole way from a file and flags to a config, with classes shaped like those of the training command."""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import draccus
import pytest

from ponente.config.load import Loaded, load_config
from ponente.config.problems import ConfigError

SEED = sorted((Path(__file__).resolve().parents[4] / "shared" / "seeds").glob("002*.txt"))


@dataclass(frozen=True, kw_only=True)
class Source(draccus.ChoiceRegistry):
    @classmethod
    def default_choice_name(cls) -> str | None:
        return "url"


@Source.register_subclass("url")
@dataclass(frozen=True, kw_only=True)
class UrlSource(Source):
    train_urls: list[str] = field(default_factory=list)
    validation_urls: list[str] = field(default_factory=list)


@Source.register_subclass("hf")
@dataclass(frozen=True, kw_only=True)
class HubSource(Source):
    id: str
    name: str | None = None
    stream: bool = True


@dataclass(frozen=True, kw_only=True)
class Format(draccus.ChoiceRegistry):
    @classmethod
    def default_choice_name(cls) -> str | None:
        return "text"


@Format.register_subclass("text")
@dataclass(frozen=True, kw_only=True)
class TextFormat(Format):
    text_key: str = "text"


@dataclass(frozen=True, kw_only=True)
class Component:
    source: Source
    format: Format = field(default_factory=TextFormat)
    cache_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class Data:
    tokenizer: str = "gpt2"
    cache_dir: str = "cache/"
    components: dict[str, Component] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Model(draccus.ChoiceRegistry):
    max_seq_len: int = 1024


@Model.register_subclass("gpt2")
@dataclass(frozen=True, kw_only=True)
class Gpt2(Model):
    hidden_dim: int = 768
    num_heads: int = 12
    num_layers: int = 12
    gradient_checkpointing: bool | str = True
    scale_attn_by_inverse_layer_idx: bool = False


@Model.register_subclass("mpt")
@dataclass(frozen=True, kw_only=True)
class Mpt(Model):
    pass


@Model.register_subclass("llama")
@dataclass(frozen=True, kw_only=True)
class Llama(Model):
    pass


@dataclass(frozen=True, kw_only=True)
class Tracker(draccus.ChoiceRegistry):
    pass


@Tracker.register_subclass("wandb")
@dataclass(frozen=True, kw_only=True)
class Wandb(Tracker):
    project: str = "ponente"
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Keep:
    every: int
    until: int | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpointer:
    base_path: str = "checkpoints/"
    save_interval: str = "15m"
    keep: list[Keep] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    tracker: Tracker | list[Tracker] | None = None
    mp: str = "f32"
    num_train_steps: int = 400000
    train_batch_size: int = 512
    per_device_parallelism: int = -1
    per_device_eval_parallelism: int = -1
    max_eval_batches: int | None = None
    checkpointer: Checkpointer = field(default_factory=Checkpointer)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    min_lr_ratio: float = 0.1
    decay: float | int | None = None


@dataclass(frozen=True, kw_only=True)
class Train:
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Gpt2)
    trainer: Trainer = field(default_factory=Trainer)
    optimizer: Optimizer = field(default_factory=Optimizer)
    initialize_from_hf: bool | str = False
    use_hf_model_config: bool = False
    hf_save_steps: int = 10000
    hf_save_path: str | None = None
    hf_upload: str | None = None


@dataclass(frozen=True, kw_only=True)
class CacheDataset:
    data: Data = field(default_factory=Data)


def load(folder: Path, text: str, *flags: str, cls: type[Any] = Train, **options: Any) -> Loaded[Any]:
    path = folder / "c.yaml"
    path.write_text(text)
    return load_config(cls, str(path), flags, **options)


def error_of(folder: Path, text: str, *flags: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *flags, **options)
    return str(caught.value)


def seed_block(number: int) -> str:
    if not SEED:
        pytest.skip("wants ../shared/seeds")
    return re.findall(r"```yaml\n(.*?)```", SEED[0].read_text(), re.DOTALL)[number]


def test_the_configuration_of_the_guide_loads_as_printed(tmp_path: Path) -> None:
    config = load(tmp_path, seed_block(3)).config
    source = UrlSource(
        train_urls=["gs://path/to/train.{1..32}.jsonl.gz"], validation_urls=["gs://path/to/valid.{1..4}.jsonl.gz"]
    )
    assert config == Train(
        data=Data(
            cache_dir="gs://path/to/cache",
            components={"main": Component(source=source, cache_dir="gs://path/to/cache")},
        ),
        model=Gpt2(
            hidden_dim=1536, num_heads=24, num_layers=48, max_seq_len=1024, scale_attn_by_inverse_layer_idx=True
        ),
        trainer=Trainer(
            tracker=Wandb(project="levanter", tags=["gpt2"]),
            mp="p=f32,c=bfloat16",
            num_train_steps=100000,
            per_device_eval_parallelism=8,
            checkpointer=Checkpointer(base_path="gs://path/to/checkpoints", keep=[Keep(every=10000)]),
        ),
        optimizer=Optimizer(learning_rate=1e-4),
        hf_save_path="gs://path/to/hf/checkpoints",
    )


def test_the_other_configurations_of_the_guide_load_as_printed(tmp_path: Path) -> None:
    assert load(tmp_path, seed_block(0)).config.data.components["main"].source.validation_urls == [
        "gs://path/to/valid.{1..4}.jsonl.gz"
    ]
    assert load(tmp_path, seed_block(2)).config.data.components["main"].source == HubSource(id="EleutherAI/pile")
    mpt, llama = load(tmp_path, seed_block(4)).config, load(tmp_path, seed_block(5)).config
    assert (mpt.model, mpt.initialize_from_hf, mpt.use_hf_model_config) == (Mpt(), "mosaicml/mpt-7b", True)
    assert (llama.model, llama.initialize_from_hf) == (Llama(), "meta-llama/Llama-2-7b-hf")


def test_flags_win_over_the_file_and_may_stand_alone(tmp_path: Path) -> None:
    text = "data: {train_urls: [a], cache_dir: c}\nmodel: {type: gpt2, max_seq_len: 2048}\n"
    flags = [
        "--model.seq-len=128",
        "--data.train_urls",
        "b.jsonl",
        "--data.cache_dir",
        "d",
        "--trainer.wandb.project=x",
    ]
    config = load(tmp_path, text, *flags).config
    assert config.model == Gpt2(max_seq_len=128)
    assert config.data.components == {"main": Component(source=UrlSource(train_urls=["b.jsonl"]), cache_dir="d")}
    assert config.trainer.tracker == Wandb(project="x")
    assert load_config(Train, None, ["--model.type", "mpt", "--trainer.max_eval_batches", "none"]).config == Train(
        model=Mpt()
    )
    assert load_config(Train, None).config == Train()


def test_errors_name_what_the_user_wrote_and_where(tmp_path: Path) -> None:
    text = error_of(tmp_path, "data:\n  tokenizer: gpt2\n  train_urls: {a: 1}\nmodel:\n  type: gpt2\n  seq_len: long\n")
    assert f"data.train_urls ({tmp_path}/c.yaml:3) = {{'a': 1}}" in text
    assert f"model.seq_len ({tmp_path}/c.yaml:6) = 'long'; needed a whole number. Change model.seq_len." in text
    text = error_of(tmp_path, "{}", "--trainer.nmu_train_steps", "5")
    assert "trainer.nmu_train_steps (flag --trainer.nmu_train_steps)" in text and "Write num_train_steps" in text
    text = error_of(tmp_path, "data:\n  train_urls: [a]\n  splts: [b]\n")
    assert f"the unknown key data.splts ({tmp_path}/c.yaml:3)" in text and "Write splits if" in text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("data: {train_url: [a]}", "train_urls"),
        ("data: {confgs: {}}", "configs"),
        ("data: {configs: {a: {id: x, txt_key: y}}}", "text_key"),
        ("model: {type: gpt2, seqlen: 5}", "seq_len"),
        ("trainer: {wndb: {}}", "wandb"),
    ],
)
def test_the_nearest_key_may_be_one_of_levanters(text: str, meant: str, tmp_path: Path) -> None:
    assert f"Write {meant} if that is what you mean" in error_of(tmp_path, text)


def test_places_are_known_after_loading(tmp_path: Path) -> None:
    loaded = load(tmp_path, "data:\n  cache_dir: c\n  train_urls: [a]\n", "--data.tokenizer", "x")
    assert loaded.place_of("data.components.main.source.train_urls") == f"data.train_urls ({tmp_path}/c.yaml:3)"
    assert loaded.place_of("data.components.main.cache_dir") == f"data.cache_dir ({tmp_path}/c.yaml:2)"
    assert loaded.place_of("data.tokenizer") == "data.tokenizer (flag --data.tokenizer)"


def test_sections_of_other_commands_are_passed_over_unread(tmp_path: Path) -> None:
    text = (
        "data: {id: x, shuffle: true, pack: 3}\nmodel: {type: nosuch}\ntrainer: {quantization: {fp8: true}, ray: {}}\n"
    )
    passed = ["model", "trainer", "data.shuffle", "data.components.*.pack"]
    loaded = load(tmp_path, text, "--trainer.x", "1", cls=CacheDataset, passed_over=passed)
    assert loaded.config.data.components["main"].source == HubSource(id="x")
    assert loaded.warnings == ()
    text = error_of(tmp_path, "modl: 1\ndata: {shufle: 1}", cls=CacheDataset, passed_over=passed)
    assert "Write model if" in text and "Write shuffle if" in text


def test_each_warning_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "optimizer: {cooldown: .2}\ntrainer: {log_jaxprs: true}\n"
    with caplog.at_level(logging.WARNING):
        loaded = load(tmp_path, text, "--optimizer.decay", ".3", "--trainer.log_jaxprs", "false")
    assert loaded.config.optimizer.decay == 0.3
    assert len(loaded.warnings) == 2 and caplog.messages == list(loaded.warnings)
    assert f"optimizer.cooldown ({tmp_path}/c.yaml:1) is deprecated" in caplog.messages[0]


def test_a_warning_is_not_lost_where_the_configuration_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error_of(tmp_path, "trainer: {log_jaxprs: true, x: 1}")
    assert "log_jaxprs" in caplog.text
