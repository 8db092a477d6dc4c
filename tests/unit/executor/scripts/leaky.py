"""Steps that are given secrets in every way there is and try to leave them everywhere they can.

Each secret begins with "planted", so that one search of all bytes below the prefix finds any of them.
"""

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponente.cluster import map_shards, report_progress
from ponente.config import execution
from ponente.executor import ExecutorStep, Summary, executor_main, this_output_path, this_state_path

SHAPED = "hf_" + "planted0Shape1" * 2
URLS = ["https://ann:planted-url-user@host/a", "https://host/b?sig=planted-url-query&page=2"]
STEP_ENVIRONMENT = {"SERVICE_PASSWORD": "planted-step-env", "REGION": "eu-south-2"}
CONFIG_SECRETS = ["planted-by-field", "planted-in-a-list", "planted-deep", "planted-execution", "planted-default"]


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """Where to look, with which keys."""

    api_key: str
    passwords: dict[str, list[str]]
    credentials: dict[str, Any]
    shaped: str
    urls: tuple[str, ...]
    client_secret: str = "planted-default"
    hf_token: str = execution("")
    eos_token: str = "</s>"
    tokenizer: str = "byte"
    max_tokens: int = 1
    text_key: str = "text"
    tried: str = this_state_path("tried")
    output: str = this_output_path("output.txt")


def everything() -> str:
    """All secrets that a step's process can know, in one text."""
    environment = [os.environ.get(name, "") for name in ("DB_PASSWORD", "SERVICE_PASSWORD", "DEPLOY_KEY")]
    return " | ".join([*CONFIG_SECRETS, SHAPED, *URLS, *environment, *sys.argv])


def leak(config: RemoteConfig) -> Summary:
    """Prints, logs and reports its secrets; raises them, the first time."""
    assert (config.api_key, config.hf_token) == ("planted-by-field", "planted-execution")
    assert config.credentials == {"any": {"name": ["planted-deep"]}}
    print("printed", everything())
    logging.getLogger("leak").warning("logged %s", everything())
    if not Path(config.tried).exists():
        Path(config.tried).touch()
        raise ValueError(f"raised {everything()} by {config}")
    shards = [
        "https://host/0?token=planted-shard-token",
        {"api_key": "planted-shard-name"},
        f"data-{os.environ['DB_PASSWORD']}.txt",
        "data-planted-by-field.txt",
    ]
    map_shards(leak_shard, shards, name="shards", workers=2, max_attempts=2, max_quarantined=4)
    report_progress(1, 2, unit="secrets", note=f"noted {everything()}")
    Path(config.output).write_text("nothing secret")
    return Summary(values={"said": f"summarised {everything()}", "password": "planted-in-summary"})


def leak_shard(shard: Any) -> int:
    """Fails for one kind of shard, with its secret."""
    print("shard", shard)
    if isinstance(shard, dict):
        raise RuntimeError(f"shard raised {shard}")
    return 1


leaky = ExecutorStep(
    name="leaky",
    fn=leak,
    config=RemoteConfig(
        api_key="planted-by-field",
        passwords={"password": ["planted-in-a-list"]},
        credentials={"any": {"name": ["planted-deep"]}},
        shaped=SHAPED,
        urls=tuple(URLS),
        hf_token="planted-execution",
        eos_token="<|endoftext|>",
        tokenizer="gpt2-kept",
        max_tokens=1729,
        text_key="body-kept",
    ),
    env=STEP_ENVIRONMENT,
    description=f"described with {URLS[0]} and {os.environ.get('DB_PASSWORD')}",
)

if __name__ == "__main__":
    split = sys.argv.index("--")
    executor_main(steps=[leaky], argv=sys.argv[1:split], description=f"An experiment with {SHAPED} and {URLS[1]}")
