"""Buckets by URL, as TensorStore takes them: with the endpoint, region and credentials that fsspec's filesystems find.

In: `s3://bucket/…` or `gs://bucket/…`, and the environment (AWS_ENDPOINT_URL, AWS_REGION, STORAGE_EMULATOR_HOST, and
what the vendors' own tools read). Out: a key-value store.
"""

import os
from collections.abc import Mapping
from typing import Any

from ponente.store.filesystems import prepare

PROTOCOLS = ("s3", "gs")
_ADDRESS_VARIABLE = "TENSORSTORE_GCS_HTTP_URL"


def bucket_of(path: str) -> tuple[str, str]:
    """A URL as its bucket and the key in it."""
    bucket, _, key = path.partition("://")[2].partition("/")
    return bucket, key


def key_value_store(path: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The place as TensorStore takes it, with the endpoint, region and credentials of the filesystem."""
    variables = os.environ if environment is None else environment
    bucket, key = bucket_of(path)
    if path.startswith("gs://"):
        _tell_address(variables)
        return {"driver": "gcs", "bucket": bucket, "path": key}
    store: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": key}
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    if not endpoint:
        endpoint, told = _told_by_file(variables)
        region = region or (told if endpoint else None)  # for Amazon's own, TensorStore asks where a bucket is
    if endpoint:
        store["endpoint"] = endpoint
        region = region or "us-east-1"
    if region:
        store["aws_region"] = region
    credentials = _aws_credentials(variables)
    return store if credentials is None else {**store, "aws_credentials": credentials}


def _aws_credentials(variables: Mapping[str, str]) -> dict[str, str] | None:
    """Where TensorStore finds them; None: by its own search, which knows nothing of AWS_PROFILE."""
    if variables.get("AWS_ACCESS_KEY_ID"):
        return {"type": "environment"}
    profile = variables.get("AWS_PROFILE")
    config = os.path.expanduser(variables.get("AWS_CONFIG_FILE") or "~/.aws/config")
    keys = os.path.expanduser(variables.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    if not profile or not os.path.isfile(config) or not os.path.isfile(keys):
        return None
    return {"type": "profile", "profile": profile, "config_file": config, "credentials_file": keys}


def _tell_address(variables: Mapping[str, str]) -> None:
    """TensorStore knows another server than Google's by a variable alone."""
    if emulator := variables.get("STORAGE_EMULATOR_HOST"):
        address = emulator if "://" in emulator else f"http://{emulator}"
        if os.environ.get(_ADDRESS_VARIABLE) != address:
            os.environ[_ADDRESS_VARIABLE] = address


def _told_by_file(variables: Mapping[str, str]) -> tuple[str | None, str | None]:
    prepare("s3")  # or what is not installed is named
    from ponente.store.aws_config import endpoint_and_region

    return endpoint_and_region(variables.get("AWS_PROFILE"), variables.get("AWS_CONFIG_FILE"))
