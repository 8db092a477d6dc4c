"""10,000 steps in ponente: 1,000 chains of 10, each with a 100-field config, half of it not at its defaults."""

from dataclasses import dataclass
from pathlib import Path

from ponente.executor import ExecutorStep, executor_main, this_output_path


@dataclass(frozen=True, kw_only=True)
class WideConfig:
    parent: object = None
    output: object = this_output_path("done")
    layers_00: int = 0
    layers_01: int = 1
    layers_02: int = 2
    layers_03: int = 3
    layers_04: int = 4
    layers_05: int = 5
    layers_06: int = 6
    layers_07: int = 7
    layers_08: int = 8
    layers_09: int = 9
    layers_10: int = 10
    layers_11: int = 11
    layers_12: int = 12
    layers_13: int = 13
    layers_14: int = 14
    layers_15: int = 15
    layers_16: int = 16
    layers_17: int = 17
    layers_18: int = 18
    layers_19: int = 19
    layers_20: int = 20
    layers_21: int = 21
    layers_22: int = 22
    layers_23: int = 23
    layers_24: int = 24
    rate_00: float = 0.5
    rate_01: float = 1.5
    rate_02: float = 2.5
    rate_03: float = 3.5
    rate_04: float = 4.5
    rate_05: float = 5.5
    rate_06: float = 6.5
    rate_07: float = 7.5
    rate_08: float = 8.5
    rate_09: float = 9.5
    rate_10: float = 10.5
    rate_11: float = 11.5
    rate_12: float = 12.5
    rate_13: float = 13.5
    rate_14: float = 14.5
    rate_15: float = 15.5
    rate_16: float = 16.5
    rate_17: float = 17.5
    rate_18: float = 18.5
    rate_19: float = 19.5
    rate_20: float = 20.5
    rate_21: float = 21.5
    rate_22: float = 22.5
    rate_23: float = 23.5
    rate_24: float = 24.5
    source_00: str = "default-0"
    source_01: str = "default-1"
    source_02: str = "default-2"
    source_03: str = "default-3"
    source_04: str = "default-4"
    source_05: str = "default-5"
    source_06: str = "default-6"
    source_07: str = "default-7"
    source_08: str = "default-8"
    source_09: str = "default-9"
    source_10: str = "default-10"
    source_11: str = "default-11"
    source_12: str = "default-12"
    source_13: str = "default-13"
    source_14: str = "default-14"
    source_15: str = "default-15"
    source_16: str = "default-16"
    source_17: str = "default-17"
    source_18: str = "default-18"
    source_19: str = "default-19"
    source_20: str = "default-20"
    source_21: str = "default-21"
    source_22: str = "default-22"
    source_23: str = "default-23"
    shape_00: tuple[int, ...] = (0, 0)
    shape_01: tuple[int, ...] = (1, 1)
    shape_02: tuple[int, ...] = (2, 2)
    shape_03: tuple[int, ...] = (3, 3)
    shape_04: tuple[int, ...] = (4, 4)
    shape_05: tuple[int, ...] = (5, 5)
    shape_06: tuple[int, ...] = (6, 6)
    shape_07: tuple[int, ...] = (7, 7)
    shape_08: tuple[int, ...] = (8, 8)
    shape_09: tuple[int, ...] = (9, 9)
    shape_10: tuple[int, ...] = (10, 10)
    shape_11: tuple[int, ...] = (11, 11)
    shape_12: tuple[int, ...] = (12, 12)
    shape_13: tuple[int, ...] = (13, 13)
    shape_14: tuple[int, ...] = (14, 14)
    shape_15: tuple[int, ...] = (15, 15)
    shape_16: tuple[int, ...] = (16, 16)
    shape_17: tuple[int, ...] = (17, 17)
    shape_18: tuple[int, ...] = (18, 18)
    shape_19: tuple[int, ...] = (19, 19)
    shape_20: tuple[int, ...] = (20, 20)
    shape_21: tuple[int, ...] = (21, 21)
    shape_22: tuple[int, ...] = (22, 22)
    shape_23: tuple[int, ...] = (23, 23)


def touch(config: WideConfig) -> None:
    Path(str(config.output)).write_text("done\n")


INTS = [f"layers_{k:02}" for k in range(13)]
FLOATS = [f"rate_{k:02}" for k in range(13)]
TEXTS = [f"source_{k:02}" for k in range(12)]
TUPLES = [f"shape_{k:02}" for k in range(12)]


def changed_fields(number: int) -> dict[str, object]:
    """50 of the 100 fields, none at its default, with values that are the step's own."""
    return {
        **{name: number + k + 1000 for k, name in enumerate(INTS)},
        **{name: number + k / 8 + 1000 for k, name in enumerate(FLOATS)},
        **{name: f"corpus/part-{number}/shard-{k}" for k, name in enumerate(TEXTS)},
        **{name: (number, k, 1000) for k, name in enumerate(TUPLES)},
    }


def chains() -> list[ExecutorStep]:
    steps = []
    for chain in range(1000):
        parent = None
        for index in range(10):
            config = WideConfig(parent=parent, **changed_fields(chain * 10 + index))
            parent = ExecutorStep(name=f"chain-{chain}/step-{index}", fn=touch, config=config)
            steps.append(parent)
    return steps


if __name__ == "__main__":
    executor_main(steps=chains(), description=__doc__)
