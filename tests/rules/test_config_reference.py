"""`docs/config.md` has every key of a training config, with the default and the comment that the code has."""

import dataclasses
import inspect
import os
import re
from pathlib import Path
from typing import Any, get_type_hints

from ponente.models.families import lm_families
from ponente.ops.rotary import RotaryConfig
from ponente.store.sources.url import UrlSourceConfig
from ponente.train.averaging import EmaConfig
from ponente.train.checkpointer import CheckpointerConfig, KeepConfig
from ponente.train.config import TrainConfig
from ponente.train.data.config import TrainComponentConfig, TrainDataConfig
from ponente.train.distributed import DistributedConfig
from ponente.train.mesh import MeshConfig
from ponente.train.optimizers import OptimizerConfig
from ponente.train.optimizers.schedules import DecayConfig
from ponente.train.profiling import ProfilerConfig
from ponente.train.quantization import QuantizationConfig
from ponente.train.trackers.config import TrackerConfig
from ponente.train.trainer import TrainerConfig
from ponente.train.watch import WatchConfig
from ponente.train.watchdog import WatchdogConfig

FILE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
HEAD = """# Keys of a training config

Every key that `ponente train --config_path C.yaml` knows; each may also be given as a flag with its whole path
(`--trainer.num_train_steps 100`). Written from the code by `tests/rules/test_config_reference.py`;
`docs/training.md` says how they are used. Where a section has a `type`, the keys of each type follow.
"""
NESTED = {"data", "model", "trainer", "optimizer", "components", "lr_schedule", "rope", "tracker", "watch", "profiler",
          "progress_watchdog", "checkpointer", "model_averaging", "mesh", "distributed",
          "quantization"}  # fmt: skip  # told in their own sections


def sections() -> list[tuple[str, Any]]:
    def kinds(registry: Any) -> dict[str, Any]:
        names: dict[Any, str] = {}
        for name, kind in sorted(registry.get_known_choices().items()):
            if kind.__module__.startswith("ponente."):  # other tests register their own
                names.setdefault(kind, name)
        return {name: kind for kind, name in names.items()}

    return [
        ("(top level)", TrainConfig),
        ("data", TrainDataConfig),
        ("data.components.NAME", TrainComponentConfig),
        ("data.components.NAME.source (type: url)", UrlSourceConfig),
        *((f"model (type: {name})", kind) for name, kind in sorted(lm_families().items())),
        *((f"model.rope (type: {name})", kind) for name, kind in kinds(RotaryConfig).items()),
        *((f"optimizer (type: {name})", kind) for name, kind in kinds(OptimizerConfig).items()),
        *((f"optimizer.lr_schedule (type: {name})", kind) for name, kind in kinds(DecayConfig).items()),
        ("trainer", TrainerConfig),
        ("trainer.checkpointer", CheckpointerConfig),
        ("trainer.checkpointer.keep (a list of)", KeepConfig),
        *((f"trainer.tracker (type: {name})", kind) for name, kind in kinds(TrackerConfig).items()),
        ("trainer.watch", WatchConfig),
        ("trainer.profiler", ProfilerConfig),
        ("trainer.progress_watchdog", WatchdogConfig),
        ("trainer.model_averaging (type: ema)", EmaConfig),
        ("trainer.mesh", MeshConfig),
        ("trainer.distributed", DistributedConfig),
        ("trainer.quantization", QuantizationConfig),
    ]


def comments(owner: Any) -> dict[str, str]:
    """The comments behind the fields of a class and of those that it inherits from."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        if dataclasses.is_dataclass(one):
            found |= dict(re.findall(r"^    (\w+): .*?  # ((?!noqa|type:|fmt:).*)$", inspect.getsource(one), re.M))
    return found


def row(owner: Any, field: Any, said: dict[str, str]) -> str:
    kind = get_type_hints(owner)[field.name]
    shown = kind.__name__ if isinstance(kind, type) and "[" not in str(kind) else str(kind)
    shown = re.sub(r"[\w.]+\.(\w+)", r"\1", shown).replace("NoneType", "None").replace("|", "\\|")
    default = field.default
    if default is dataclasses.MISSING:
        default = "required" if field.default_factory is dataclasses.MISSING else field.default_factory()
    value = "see below" if field.name in NESTED else getattr(default, "value", default)
    told = value if value in ("required", "see below") else f"`{value}`"
    return f"| `{field.name}` | `{shown}` | {told} | {said.get(field.name, '')} |"


def reference() -> str:
    parts = [HEAD]
    for name, owner in sections():
        said, fields = comments(owner), dataclasses.fields(owner)
        parts.append(f"## {name}\n\n{inspect.cleandoc(owner.__doc__ or '').splitlines()[0]}\n")
        if fields:
            table = [row(owner, field, said) for field in fields]
            parts.append("\n".join(["| key | type | default | |", "|---|---|---|---|", *table]) + "\n")
    return "\n".join(parts)


def test_the_reference_has_every_key_as_the_code_has_it() -> None:
    if os.environ.get("PONENTE_WRITE_GOLDEN"):
        FILE.write_text(reference())
    assert FILE.read_text() == reference(), "run PONENTE_WRITE_GOLDEN=1 pytest tests/rules/test_config_reference.py"
