"""Models on the hub: its local cache, a hub that refuses, and uploads to a hub that is played by a fake."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hf_models import write_model

from ponente.config.errors import UserError

pytest.importorskip("huggingface_hub", reason="wants the extra hub")

from ponente.models import hf_hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_OPEN = """
from ponente.models.hf_folder import open_hf_model
folder = open_hf_model(sys.argv[1])
print(folder.config["model_type"], len(folder.names), folder.read("model.norm.weight").shape, sorted(folder.files))
"""
_UPLOAD = "from ponente.models.hf_hub import upload_folder\nprint(upload_folder(sys.argv[2], sys.argv[1]))"


def elsewhere(program: str, *arguments: str, **environment: str) -> str:
    """What a fresh process says: huggingface_hub reads its environment once."""
    indented = "\n".join(f"    {line}" for line in program.strip().splitlines())
    whole = f"import sys\ntry:\n{indented}\nexcept Exception as error: print(type(error).__name__, error)"
    clean = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    command = [sys.executable, "-c", whole, *arguments]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=120).stdout.strip()


def cached(home: Path) -> Path:
    """A model in the hub's local cache."""
    repo = home / "hub" / "models--org--tiny"
    snapshot = write_model(repo / "snapshots" / COMMIT, "llama")
    (snapshot / "tokenizer.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_the_local_cache_of_the_hub_serves_without_the_hub(tmp_path: Path) -> None:
    snapshot = cached(tmp_path)
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for name in ("org/tiny", f"org/tiny@{COMMIT}"):
        assert elsewhere(_OPEN, name, **offline) == "llama 30 (32,) ['tokenizer.json']"
    missing = elsewhere(_OPEN, "org/other", **offline)
    assert missing.startswith("UserError found no folder 'org/other' here, and the hub could not be asked")
    assert "or give the path or URL of a folder that holds its config.json and safetensors" in missing
    (snapshot / "model.safetensors").unlink()
    without = elsewhere(_OPEN, "org/tiny", **offline)
    assert without.startswith("UserError found org/tiny with config.json, tokenizer.json and no weights")
    assert "(pytorch_model.bin) are never read" in without


@pytest.fixture
def refusing_hub() -> Iterator[dict[str, str]]:
    """The environment of a hub that refuses: names with "gated" are gated, with "late" lack the revision."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kinds = {"gated": (403, "GatedRepo"), "late": (404, "RevisionNotFound"), "create": (401, "Unauthorized")}
            status, kind = next((kinds[key] for key in kinds if key in self.path), (404, "RepoNotFound"))
            self.send_response(status)
            self.send_header("X-Error-Code", kind)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HUB_DISABLE_XET": "1"}
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_gated_or_unknown_name_says_where_to_ask(refusing_hub: dict[str, str], tmp_path: Path) -> None:
    place = {**refusing_hub, "HF_HOME": str(tmp_path)}
    gated = elsewhere(_OPEN, "org/gated", HF_TOKEN="hf_one", **place)
    assert gated.startswith("UserError found that org/gated is gated")
    assert "ask for access at https://huggingface.co/org/gated" in gated
    unknown = elsewhere(_OPEN, "org/unknown", **place)
    assert unknown.startswith("UserError found no folder 'org/unknown' here and no such name on the hub")
    late = elsewhere(_OPEN, "org/late@v9", **place)
    assert late.startswith("UserError found no revision 'v9' of org/late on the hub")


def test_an_upload_that_the_hub_refuses_says_what_it_needs(refusing_hub: dict[str, str], tmp_path: Path) -> None:
    folder = str(write_model(tmp_path / "m", "llama"))
    refused = elsewhere(_UPLOAD, "org/mine", folder, HF_TOKEN="hf_one", HF_HOME=str(tmp_path), **refusing_hub)
    assert refused.startswith("UserError found that the hub does not take an upload to org/mine")
    assert "set HF_TOKEN. What was exported stays where it is" in refused
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_one"}
    out_of_reach = elsewhere(_UPLOAD, "org/mine", folder, **nowhere)
    assert out_of_reach.startswith("UserError found that the hub could not be reached to upload to org/mine")
    unnamed = elsewhere(_UPLOAD, "a/b/c", folder, **nowhere)
    assert unnamed.startswith("UserError found 'a/b/c' as the place to upload to, which cannot name a repository")


class FakeHub:
    """Repositories in memory, by name and branch."""

    repos: dict[str, dict[str, dict[str, bytes]]] = {}
    private: dict[str, bool] = {}

    def create_repo(self, name: str, *, exist_ok: bool, private: bool) -> None:
        assert exist_ok or name not in self.repos
        self.private.setdefault(name, private)
        self.repos.setdefault(name, {"main": {}})

    def create_branch(self, name: str, *, branch: str, exist_ok: bool) -> None:
        assert exist_ok or branch not in self.repos[name]
        self.repos[name].setdefault(branch, {})

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str, revision: str | None) -> Any:
        files = {file.name: file.read_bytes() for file in Path(folder_path).iterdir()}
        self.repos[repo_id][revision or "main"].update(files)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/{revision or 'main'}")


def test_a_folder_is_uploaded_whole_and_private_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_hub, "HfApi", FakeHub)
    folder = write_model(tmp_path / "m", "llama")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert hf_hub.upload_folder(str(folder), "org/a") == "https://hub/org/a/main"
    assert hf_hub.upload_folder(f"file://{folder}", "org/b@step-10", visibility="public") == "https://hub/org/b/step-10"
    assert hf_hub.upload_folder(str(folder), "org/b@step-10") == "https://hub/org/b/step-10"
    assert FakeHub.repos == {"org/a": {"main": whole}, "org/b": {"main": {}, "step-10": whole}}
    assert FakeHub.private == {"org/a": True, "org/b": False}


@pytest.mark.parametrize("place", ["memory://test-hf-hub/m", "/nowhere/at/all"])
def test_what_is_no_local_model_is_not_uploaded(place: str) -> None:
    with pytest.raises(UserError, match=r"found no local folder with a config\.json at .* Export the model to a local"):
        hf_hub.upload_folder(place, "org/a")
