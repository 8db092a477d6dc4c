"""No secret that a run is given in any way is in any byte below its prefix; what only looks like one stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import leaky
import pytest

LEAKY = Path(leaky.__file__)
DEPLOY_KEY = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nplanted-key-line-one\nplanted-key-line-two\n-----END OPENSSH PRIVATE KEY-----"
)
PLANTED_ENVIRONMENT = {"DB_PASSWORD": "planted-environment", "DEPLOY_KEY": DEPLOY_KEY}


def files_below(prefix: Path) -> dict[str, bytes]:
    return {str(path.relative_to(prefix)): path.read_bytes() for path in prefix.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=["subprocess", "driver"])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Ended":
    """A run of the leaky script, with secrets in its arguments and environment, by each launcher."""
    prefix = tmp_path_factory.mktemp("leaky") / "prefix"
    own = ["--prefix", str(prefix), "--launcher", request.param]
    extra = ["--", "--api_key", "planted-argument", "--password=planted-equals", "https://u:planted-argv-url@h/x"]
    completed = subprocess.run(
        [sys.executable, str(LEAKY), *own, *extra],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **PLANTED_ENVIRONMENT},
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return Ended(prefix)


class Ended:
    def __init__(self, prefix: Path) -> None:
        self.files = files_below(prefix)

    def file(self, ending: str) -> str:
        [found] = [data for name, data in self.files.items() if name.endswith(ending)]
        return found.decode()

    def all_of(self, part: str) -> str:
        return "\n".join(data.decode() for name, data in sorted(self.files.items()) if part in name)


def test_no_planted_secret_is_in_any_file(ended: Ended) -> None:
    for name, data in ended.files.items():
        lower = data.lower()
        position = lower.find(b"planted")
        assert position < 0, f"{name}: …{data[max(0, position - 80) : position + 80]!r}…"
        assert b"planted" not in name.encode()


def test_the_places_where_secrets_could_be_are_there_with_masks(ended: Ended) -> None:
    assert "***" in ended.file(".payload.json")
    assert "***" in ended.file("manifest.json")
    assert "noted ***" in ended.file(".progress.json")
    release, commit = (json.loads(ended.file(f".log.00000{number}.json")) for number in (2, 4))
    assert release["error"]["message"].startswith("raised ***") and "raised ***" in release["error"]["traceback"]
    assert commit["summary"]["values"]["said"].startswith("summarised ***")
    assert commit["summary"]["values"]["password"] == "***"
    assert "WARNING leak: logged ***" in ended.all_of(".logs/")
    assert "shard raised" in ended.all_of(".events/") and "***" in ended.all_of(".events/")
    assert "https://host/0?token=***" in ended.all_of(".maps/") and "data-***.txt" in ended.all_of(".maps/")


def test_the_manifest_has_the_arguments_and_descriptions_without_their_secrets(ended: Ended) -> None:
    manifest = json.loads(ended.file("manifest.json"))
    assert manifest["argv"][-4:] == ["--api_key", "***", "--password=***", "https://***@h/x"]
    assert manifest["argv"][1] == "--prefix"
    assert manifest["description"] == "An experiment with *** and https://host/b?sig=***&page=2"
    assert manifest["steps"][0]["description"] == "described with https://***@host/a and ***"


def test_the_payload_has_masks_and_what_only_looks_like_a_secret_is_kept(ended: Ended) -> None:
    payload = json.loads(ended.file(".payload.json"))["payload"]
    assert payload["config"] == {
        "$type": "RemoteConfig",
        "api_key": "***",
        "passwords": {"password": ["***"]},
        "credentials": {"any": {"name": ["***"]}},
        "shaped": "***",
        "urls": ["https://***@host/a", "https://host/b?sig=***&page=2"],
        "eos_token": "<|endoftext|>",
        "tokenizer": "gpt2-kept",
        "max_tokens": 1729,
        "text_key": "body-kept",
    }


def test_errors_keep_what_is_no_secret(ended: Ended) -> None:
    error = json.loads(ended.file(".log.000002.json"))["error"]
    assert "eos_token='<|endoftext|>', tokenizer='gpt2-kept', max_tokens=1729" in error["message"]
    assert str(LEAKY) in error["traceback"], "folders and file names are no secrets"


def test_values_of_env_are_not_stored_at_all(ended: Ended) -> None:
    assert "eu-south-2" not in ended.all_of("")
