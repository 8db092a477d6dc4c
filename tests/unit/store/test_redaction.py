"""Secrets out, everything else stays: false alarms join two different steps, misses publish a key."""

import json
from typing import Any

import pytest

from ponente.store.redaction import (
    MASK,
    Redactor,
    is_secret_name,
    may_be_masked,
    redact_text,
    redact_value,
    secrets_of,
)

SHAPES = {
    "hugging face": "hf_" + "aB3" * 8,
    "openai": "sk-proj-" + "aB3_" * 6,
    "github": "ghp_" + "aB3" * 12,
    "github fine-grained": "github_pat_" + "aB3_" * 8,
    "gitlab": "glpat-" + "aB3-" * 5,
    "slack": "xoxb-" + "1234-" * 4,
    "amazon": "AKIA" + "ABCD1234" * 2,
    "google": "AIza" + "aB3_" * 9,
    "weights and biases": "wandb_v1_" + "aB3" * 8,
    "json web token": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkw." + "abcdefghijk",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("name", SHAPES)
def test_values_in_the_shape_of_known_keys_are_masked_wherever_they_stand(name: str) -> None:
    secret = SHAPES[name]
    text = redact_text(f"before {secret} after")
    assert text == f"before {MASK} after"
    assert redact_value("innocent", secret) == MASK


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "API-KEY",
        "openai_api_key",
        "OPENAI_API_KEY",
        "--api-key",
        "password",
        "db_password",
        "secret",
        "client_secret",
        "aws_secret_access_key",
        "AWS_ACCESS_KEY_ID",
        "hf_token",
        "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY",
        "access_token",
        "authorization",
        "credentials",
        "private_key",
        "session.token",
        "Cookie",
    ],
)
def test_values_of_names_that_say_secret_are_masked_whatever_they_are(name: str) -> None:
    assert is_secret_name(name)
    assert redact_value(name, "plain words") == MASK
    assert redact_value(name, "") == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token", "<|endoftext|>"),
        ("eos_token", "reserved_special_token_250"),
        ("pad_token", "[PAD]"),
        ("token", "</s>"),
        ("token", "<|reserved_special_token_250|>"),
        ("tokenizer", "meta-llama/Llama-3.1-8B-Instruct"),
        ("max_tokens", "4096"),
        ("tokens", "data/tokens-0123456789abcdef"),
        ("text_key", "text"),
        ("key", "documents/00000.parquet"),
        ("sort_key", "0123456789abcdef01"),
        ("PWD", "/home/user1/projects/ponente"),
        ("path", "s3://bucket/secret-santa/00001.txt"),
        ("name", "password-strength-classifier"),
        ("url", "https://host/a?tokenizer=gpt2&max_tokens=5&key=wiki/1.txt&page=2"),
        ("url", "https://host/a@b/c"),
        ("url", "https://host?mail=ann@example.org"),
        ("text", "sk-learn is a library, hf_transfer another, eyJ a prefix"),
        ("sha256", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
    ],
)
def test_what_is_no_secret_stays(name: str, value: str) -> None:
    assert redact_value(name, value) == value
    assert secrets_of(name, value) == []


def test_a_bare_token_is_masked_if_its_value_is_opaque() -> None:
    assert redact_value("token", "0123456789abcdef0") == MASK
    assert redact_value("auth", "Zm9vYmFyMTIzNDU2Nzg=") == MASK


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://ann:pass@host/x", "https://***@host/x"),
        ("https://ann:p@ss@host/x", "https://***@host/x"),
        ("https://ann@host:8080/x?a=1#b", "https://***@host:8080/x?a=1#b"),
        ("s3://KEY:SECRET@bucket", "s3://***@bucket"),
        ("https://h/x?token=abc&a=1", "https://h/x?token=***&a=1"),
        ("https://h/x?a=1&api_key=abc#end", "https://h/x?a=1&api_key=***#end"),
        ("https://h/x?sv=2020&sig=ab%2Bc%3D&se=1", "https://h/x?sv=2020&sig=***&se=1"),
        (
            "https://b.s3.amazonaws.com/k?X-Amz-Credential=AK%2F1&X-Amz-Date=1&X-Amz-Signature=ab12&X-Amz-Security-Token=x",
            "https://b.s3.amazonaws.com/k?X-Amz-Credential=***&X-Amz-Date=1&X-Amz-Signature=***&X-Amz-Security-Token=***",
        ),
        (
            "https://h/x?AWSAccessKeyId=a&Signature=b&Expires=1",
            "https://h/x?AWSAccessKeyId=***&Signature=***&Expires=1",
        ),
        ("https://h/x?GoogleAccessId=a@b&Expires=1", "https://h/x?GoogleAccessId=***&Expires=1"),
        ("https://h/x?key=0123456789abcdefgh", "https://h/x?key=***"),
        ("https://h/x?vault_token=0123456789abcdefgh", "https://h/x?vault_token=***"),
    ],
)
def test_user_parts_and_signed_parameters_of_urls_are_masked_and_nothing_else(url: str, clean: str) -> None:
    assert redact_text(f"GET '{url}' failed") == f"GET '{clean}' failed"
    assert redact_value("url", url) == clean


def redactor(environ: dict[str, str] | None = None, argv: list[str] | None = None) -> Redactor:
    return Redactor.of_process(environ or {}, argv or [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASSWORD", "correct horse"),
        ("PGPASSWORD", "correct horse"),
        ("MYSQL_PWD", "correct horse"),
        ("SMTP_PASS", "correct horse"),
        ("HF_TOKEN", "short1"),
        ("VAULT_TOKEN", "hvs.CAESIJ0123456789"),
        ("CI_JOB_TOKEN", "64_abcdefghij0123456"),
        ("DATABASE_URL", "postgres://ann:correct-horse@host/db"),
        ("SOME_URL", "https://host/x?token=correct-horse"),
        ("ANYTHING", "hf_" + "aB3" * 8),
    ],
)
def test_secrets_of_the_environment_are_removed_from_any_text(name: str, value: str) -> None:
    [secret] = redactor({name: value}).secrets
    assert secret in value
    assert redactor({name: value}).text(f"log: <{secret}> and <{secret}>") == f"log: <{MASK}> and <{MASK}>"


def test_ordinary_variables_and_short_values_blot_out_nothing() -> None:
    environ = {
        "PWD": "/home/user1/work/main",
        "OLDPWD": "/home/user1/work/shared",
        "HOME": "/home/user1",
        "PATH": "/usr/bin:/bin",
        "USER": "user1",
        "LANG": "en_US.UTF-8",
        "PASSWORD": "test",
        "API_KEY": "",
        "EOS_TOKEN": "<|endoftext|>",
        "TOKENIZERS_PARALLELISM": "false",
    }
    text = "user1 ran a test in /home/user1/work/main with /usr/bin/python, en_US.UTF-8, <|endoftext|>, false"
    assert redactor(environ).secrets == []
    assert redactor(environ).text(text) == text


@pytest.mark.parametrize(
    ("argv", "clean"),
    [
        (["x.py", "--api_key", "abc", "--n", "1"], ["x.py", "--api_key", MASK, "--n", "1"]),
        (["x.py", "--api-key=abc", "-v"], ["x.py", f"--api-key={MASK}", "-v"]),
        (["x.py", "--env_vars", "HF_TOKEN", "abc"], ["x.py", "--env_vars", "HF_TOKEN", MASK]),
        (["x.py", "-e", "HF_TOKEN=abc"], ["x.py", "-e", f"HF_TOKEN={MASK}"]),
        (["x.py", "--url", "https://a:b@h/x"], ["x.py", "--url", f"https://{MASK}@h/x"]),
        (["x.py", "hf_" + "a" * 20], ["x.py", MASK]),
        (
            ["x.py", "--eos_token", "</s>", "--run_only", "tokens"],
            ["x.py", "--eos_token", "</s>", "--run_only", "tokens"],
        ),
        (["x.py", "--password", "--n", "1"], ["x.py", "--password", "--n", "1"]),
        (["x.py", "--token"], ["x.py", "--token"]),
    ],
    ids=lambda value: " ".join(value[1:]),
)
def test_arguments_lose_their_secrets_and_nothing_else(argv: list[str], clean: list[str]) -> None:
    assert Redactor().arguments(argv) == clean


def test_a_secret_argument_is_removed_from_texts_too() -> None:
    assert redactor(argv=["x.py", "--password", "correct-horse"]).text("found correct-horse") == f"found {MASK}"


def test_a_secret_is_found_as_python_writes_it_as_a_url_holds_it_and_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nfirst line of the key\nsecond line of the key\n"
    knowing = Redactor(['quoted"and\\slashed', "per/cent+encoded=", key])
    for text in (repr('quoted"and\\slashed'), "per%2Fcent%2Bencoded%3D", "second line of the key", repr(key)):
        assert MASK in knowing.text(f"<{text}>"), text
    assert "line of the key" not in knowing.text(repr(key))


def test_a_secret_inside_a_longer_one_leaves_nothing_of_the_longer() -> None:
    assert Redactor(["secret", "secret-and-more"]).text("secret-and-more secret") == f"{MASK} {MASK}"


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ({"api_key": "x", "n": 1}, {"api_key": MASK, "n": 1}),
        ({"api_key": ["x", "y"]}, {"api_key": [MASK, MASK]}),
        ({"credentials": {"user": "x", "more": [{"a": "y"}]}}, {"credentials": {"user": MASK, "more": [{"a": MASK}]}}),
        ([{"url": "https://a:b@h"}], [{"url": f"https://{MASK}@h"}]),
        ({"https://a:b@h": 1}, {f"https://{MASK}@h": 1}),
        ({"eos_token": "</s>", "count": None}, {"eos_token": "</s>", "count": None}),
        ({"credentials": {"$type": "Config", "region": "eu"}}, {"credentials": {"$type": "Config", "region": "eu"}}),
        (("known-secret", 2.5), [MASK, 2.5]),
    ],
    ids=json.dumps,
)
def test_values_of_records_are_cleaned_at_any_depth(value: Any, clean: Any) -> None:
    assert Redactor(["known-secret"]).value(value) == clean


def test_what_a_redactor_knows_can_be_handed_to_another() -> None:
    first = redactor({"DB_PASSWORD": "correct horse"})
    assert Redactor(first.secrets).text("a correct horse") == f"a {MASK}"


@pytest.mark.parametrize(
    ("stored", "value", "same"),
    [
        ("a-***.txt", "a-secret.txt", True),
        ("a-***.txt", "a-\n.txt", True),
        ("a-***.txt", "b-secret.txt", False),
        ("a.txt", "a.txt", True),
        ("a.txt", "abtxt", False),
        ([1, {"k": "***"}], [1, {"k": "anything"}], True),
        ({"***": 1, "b": 2}, {"anything": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 2], False),
        (1, True, False),
        (float("nan"), float("nan"), True),
        (None, "***", False),
    ],
)
def test_a_mask_may_stand_for_anything_and_all_else_must_be_the_same(stored: Any, value: Any, same: bool) -> None:
    assert may_be_masked(stored, value) is same


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("login(user=ann, password=hunter2)", "login(user=ann, password=***)"),
        ("{'api_key': 'a b c', 'n': 1}", "{'api_key': '***', 'n': 1}"),
        ('{"client_secret": "x", "eos_token": "</s>"}', '{"client_secret": "***", "eos_token": "</s>"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("AWS_SECRET_ACCESS_KEY=abc python x.py", "AWS_SECRET_ACCESS_KEY=*** python x.py"),
        ("tokens: 512, max_tokens=5, text_key: body, key=1", "tokens: 512, max_tokens=5, text_key: body, key=1"),
        ("the password is wrong: try again", "the password is wrong: try again"),
        ("File 'x.py', line 3: secret", "File 'x.py', line 3: secret"),
    ],
)
def test_what_follows_a_name_that_says_secret_is_removed_from_logs_and_errors(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean


def test_a_payload_loses_only_known_secrets_so_that_it_stays_what_was_hashed() -> None:
    knowing = Redactor(["known-secret"])
    payload = {"prompt": "password=hunter2, please", "known-secret": ["a known-secret"], "n": 1.5, "password": "***"}
    assert knowing.payload(payload) == {
        "prompt": "password=hunter2, please",
        MASK: [f"a {MASK}"],
        "n": 1.5,
        "password": "***",
    }


def test_a_line_without_end_is_cleaned_in_time() -> None:
    line = "x" * 60_000 + " password=hunter2 " + "a=b," * 10_000 + "k" * 60_000
    assert "hunter2" not in Redactor(["another"]).text(line)
