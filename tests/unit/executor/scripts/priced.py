"""Steps with estimates: what they take, on what."""

from typing import Any

from ponente.cluster import CpuOnly, GpuConfig
from ponente.executor import Estimate, ExecutorStep, executor_main, step_type


def estimate(config: dict[str, Any]) -> Estimate:
    """What the config says."""
    return Estimate(**{name: value for name, value in config.items() if name in Estimate.__dataclass_fields__})


@step_type(kind="priced", estimate=estimate)
def work(config: dict[str, Any]) -> None:
    """Does nothing, at a price."""


def plain(config: Any) -> None:
    """A step nobody can price."""


train = ExecutorStep(
    name="train",
    fn=work,
    config={"tokens": 2e9, "flops": 3.2e18, "device_hours": 16},
    resources=GpuConfig(gpu_count=8, gpu_type="H200"),
)
copy = ExecutorStep(name="copy", fn=work, config={"bytes": 5e9, "after": train}, resources=CpuOnly())
cheap = ExecutorStep(name="cheap", fn=plain, config={"after": copy})

if __name__ == "__main__":
    executor_main(steps=[cheap], description="Prices.")
