"""Tokenizers by name: where they lie, what their files say, and what makes two of them the same."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ponente.config.errors import UserError
from ponente.tokens.load import load_tokenizer
from ponente.tokens.tokenizer import Tokenizer

TEXTS = ["Hello world", " two  spaces", "a<|im_end|>b", "été\r\n\x00", ""]


def ids(tokenizer: Tokenizer, texts: list[str] = TEXTS) -> list[int]:
    return tokenizer.encode_flat(texts)[0].tolist()


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def test_a_folder_a_file_in_it_and_a_url_of_it_are_the_same_tokenizer(tiny_folder: Path, tiny: Tokenizer) -> None:
    memory = fsspec.filesystem("memory")
    for file in tiny_folder.iterdir():
        memory.pipe_file(f"/test-load/tiny/{file.name}", file.read_bytes())
    for name in (str(tiny_folder / "tokenizer.json"), f"file://{tiny_folder}", "memory://test-load/tiny"):
        loaded = load_tokenizer(name)
        assert loaded.name == name
        assert (loaded.fingerprint, loaded.eos_id, ids(loaded)) == (tiny.fingerprint, tiny.eos_id, ids(tiny))
        assert loaded.chat_template == tiny.chat_template is not None


def test_truncation_and_padding_of_the_file_are_off(own_folder: Path, tiny: Tokenizer) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "<|endoftext|>"}  # fmt: skip
    change(own_folder, "tokenizer.json", truncation=truncation, padding=padding)
    for engine in ("fastokens", "tokenizers"):
        loaded = load_tokenizer(str(own_folder), engine=engine)
        assert ids(loaded) == ids(tiny)
        assert loaded.fingerprint == tiny.fingerprint


def test_the_fingerprint_is_of_what_ids_depend_on_and_of_nothing_else(own_folder: Path, tiny: Tokenizer) -> None:
    file = own_folder / "tokenizer.json"
    original = json.loads(file.read_text())

    def fingerprint(**values: Any) -> str:
        file.write_text(json.dumps({**original, **values}))
        return load_tokenizer(str(own_folder), engine="tokenizers").fingerprint

    model = original["model"]
    reordered = {key: original[key] for key in reversed(original)}
    reordered["model"] = {key: model[key] for key in reversed(model)}
    reordered["model"]["vocab"] = dict(reversed(model["vocab"].items()))
    file.write_text(json.dumps(reordered, indent=3, ensure_ascii=False))
    assert load_tokenizer(str(own_folder), engine="tokenizers").fingerprint == tiny.fingerprint
    assert fingerprint(decoder=None, version="1.0") == tiny.fingerprint
    older = {key: model[key] for key in ("type", "vocab")} | {"merges": [" ".join(pair) for pair in model["merges"]]}
    assert fingerprint(model=older) == tiny.fingerprint
    assert fingerprint(post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}) == (
        tiny.fingerprint
    )

    others = [
        fingerprint(normalizer={"type": "NFC"}),
        fingerprint(pre_tokenizer={**original["pre_tokenizer"], "add_prefix_space": True}),
        fingerprint(pre_tokenizer={**original["pre_tokenizer"], "use_regex": False}),
        fingerprint(model={**model, "merges": model["merges"][:-1]}),
        fingerprint(model={**model, "ignore_merges": True}),
        fingerprint(added_tokens=original["added_tokens"][:2]),
        fingerprint(added_tokens=[{**token, "lstrip": True} for token in original["added_tokens"]]),
    ]
    change(own_folder, "tokenizer_config.json", eos_token="<|im_end|>")
    others.append(fingerprint())
    assert len({tiny.fingerprint, *others}) == len(others) + 1


def test_the_fingerprint_is_the_same_on_every_machine_and_python(own_folder: Path) -> None:
    """A changed digest would rebuild every cache in the world: this one stands in ledgers."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {"a": 0, "b": 1, "é": 2, "ab": 3, "\u0120": 4}
    (own_folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]},
                "pre_tokenizer": byte_level,
                "added_tokens": [
                    {
                        "id": 5,
                        "content": "<e>",
                        "single_word": False,
                        "lstrip": False,
                        "rstrip": False,
                        "normalized": False,
                        "special": True,
                    }
                ],
            }
        )
    )
    change(own_folder, "tokenizer_config.json", eos_token="<e>", bos_token=None)
    found = load_tokenizer(str(own_folder), engine="tokenizers").fingerprint
    assert found == "b755a3bc09e9c820c7d7ace3888698834afb487ad8613b94dd7b5d3a2867a49b"


def test_vocab_json_and_merges_txt_give_the_ids_and_the_fingerprint_of_the_fast_one(
    own_folder: Path, tiny: Tokenizer
) -> None:
    model = json.loads((own_folder / "tokenizer.json").read_text())["model"]
    (own_folder / "tokenizer.json").unlink()
    (own_folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (own_folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""]))
    change(own_folder, "tokenizer_config.json", pad_token="<|im_start|>", unk_token="<|im_end|>")
    loaded = load_tokenizer(str(own_folder))
    assert ids(loaded) == ids(tiny)
    assert loaded.fingerprint == tiny.fingerprint
    assert loaded.engine.startswith("fastokens")


def test_special_tokens_are_read_in_every_form(own_folder: Path) -> None:
    (own_folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(str(own_folder)).eos_id is None
    change(own_folder, "special_tokens_map.json", eos_token={"content": "<|im_end|>", "lstrip": False}, pad_token="a")
    loaded = load_tokenizer(str(own_folder))
    assert (loaded.eos_id, loaded.bos_id) == (2, None)
    assert loaded.named_tokens == {"eos_token": "<|im_end|>", "pad_token": "a"}
    change(own_folder, "tokenizer_config.json", eos_token="<|endoftext|>", bos_token={"content": "<|im_start|>"})
    loaded = load_tokenizer(str(own_folder))
    assert (loaded.eos_id, loaded.bos_id) == (0, 1)
    assert {0, 1, 2} <= loaded.special_ids


def test_a_token_that_is_not_in_the_vocabulary_is_no_eos(own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(own_folder, "tokenizer_config.json", eos_token="<nowhere>")
    assert load_tokenizer(str(own_folder)).eos_id is None
    assert "'<nowhere>' as its eos_token, which is not in its vocabulary" in caplog.text


def test_chat_templates_are_read_in_every_form(own_folder: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    change(own_folder, "tokenizer_config.json", chat_template=named)
    assert load_tokenizer(str(own_folder)).chat_template == "D"
    change(own_folder, "tokenizer_config.json", chat_template=named[:1])
    assert load_tokenizer(str(own_folder)).chat_template is None
    change(own_folder, "tokenizer_config.json", chat_template="S")
    assert load_tokenizer(str(own_folder)).chat_template == "S"
    (own_folder / "chat_template.jinja").write_text("J")
    assert load_tokenizer(str(own_folder)).chat_template == "J"


def test_passthrough_knows_a_vocabulary_and_no_text() -> None:
    loaded = load_tokenizer("passthrough", vocab_size=100)
    assert (loaded.vocab_size, loaded.eos_id, loaded.name) == (100, None, "passthrough")
    assert loaded.fingerprint != load_tokenizer("passthrough", vocab_size=101).fingerprint
    with pytest.raises(UserError, match="format: prebuilt"):
        loaded.encode_flat(["a"])
    with pytest.raises(UserError, match=r"set data\.vocab_size"):
        load_tokenizer("passthrough")


def test_a_vocabulary_too_small_for_a_tokenizer_is_refused(tiny_folder: Path, tiny: Tokenizer) -> None:
    for size in (tiny.vocab_size, 9999):  # a model may have ids that no text has
        loaded = load_tokenizer(str(tiny_folder), vocab_size=size)
        assert (loaded.vocab_size, loaded.fingerprint) == (tiny.vocab_size, tiny.fingerprint)
    with pytest.raises(UserError, match=f"found vocab_size: 99 .* has {tiny.vocab_size} ids; needed as many or more"):
        load_tokenizer(str(tiny_folder), vocab_size=99)


def test_errors_say_what_was_found_and_what_to_do(tmp_path: Path, own_folder: Path) -> None:
    for name in (str(tmp_path / "nowhere"), "memory://nowhere/at/all", "./nowhere/tokenizer.json"):
        with pytest.raises(UserError, match=r"found nothing at .* needed a folder with a tokenizer\.json"):
            load_tokenizer(name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no file of a tokenizer; needed a tokenizer\.json"):
        load_tokenizer(str(tmp_path / "empty"))
    (own_folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"no JSON object .* fetch it again"):
        load_tokenizer(str(own_folder))
    (own_folder / "tokenizer.json").write_text('{"model": {"type": "Telepathy", "vocab": {}}}')
    with pytest.raises(UserError, match="cannot read"):
        load_tokenizer(str(own_folder))
    (own_folder / "tokenizer.json").write_text("{}")
    for ends_texts in (False, True):
        with pytest.raises(UserError, match=r"tokenizer.json without a model; needed a file"):
            load_tokenizer(str(own_folder), ends_texts=ends_texts)
    with pytest.raises(UserError, match="needed fastokens or tokenizers"):
        load_tokenizer("gpt2", engine="magic")


def test_a_sentencepiece_model_alone_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    program = (  # elsewhere, because transformers remembers whether it found sentencepiece
        "import sys\nsys.modules['sentencepiece'] = None\nfrom ponente.tokens.load import load_tokenizer\n"
        "try: load_tokenizer(sys.argv[1])\nexcept Exception as error: print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert said.startswith("UserError") and "pip install sentencepiece" in said


def load_elsewhere(name: str, **environment: str) -> str:
    """What a fresh process says that loads `name`: huggingface_hub reads its environment once."""
    program = (
        "import sys\nfrom ponente.tokens.load import load_tokenizer\n"
        "try: print(load_tokenizer(sys.argv[1]).encode_flat(['Hello world'])[0].tolist())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    clean = {"PATH": "/usr/bin:/bin", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run([sys.executable, "-c", program, name], env=clean, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def test_the_local_cache_of_the_hub_serves_without_the_hub(tiny_folder: Path, tiny: Tokenizer, tmp_path: Path) -> None:
    repo, commit = tmp_path / "hub" / "models--org--tiny", "0123456789abcdef0123456789abcdef01234567"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in tiny_folder.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    expected = str(ids(tiny, ["Hello world"]))
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert load_elsewhere("org/tiny", **offline) == expected
    assert load_elsewhere(f"org/tiny@{commit}", **offline) == expected
    missing = load_elsewhere("org/other", **offline)
    assert missing.startswith("UserError found no folder 'org/other' here, and the hub could not be asked")
    assert "or give the path or URL of a folder that holds its tokenizer.json" in missing


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    """A hub that refuses: names with "gated" are gated, others unknown."""

    class Refusing(BaseHTTPRequestHandler):
        tokens: list[str | None] = []

        def do_GET(self) -> None:
            self.tokens.append(self.headers.get("Authorization"))
            gated = "gated" in self.path
            self.send_response(403 if gated else 404)
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_gated_or_unknown_name_says_where_to_ask(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    place = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}", "HF_HOME": str(tmp_path)}
    gated = load_elsewhere("org/gated", HF_TOKEN="hf_one", **place)
    assert gated.startswith("UserError found that org/gated is gated")
    assert "ask for access at https://huggingface.co/org/gated" in gated
    unknown = load_elsewhere("org/unknown", HUGGING_FACE_HUB_TOKEN="hf_two", **place)
    assert unknown.startswith("UserError found no folder 'org/unknown' here and no such name on the hub")
    assert {"Bearer hf_one", "Bearer hf_two"} <= set(hub.RequestHandlerClass.tokens)  # type: ignore[attr-defined]
