"""Buckets by URL, as TensorStore takes them: with the endpoint, region and credentials that fsspec's filesystems find.

In: `s3://bucket/…` or `gs://bucket/…`, and the environment (AWS_ENDPOINT_URL, AWS_REGION, STORAGE_EMULATOR_HOST, and
what the vendors' own tools read). Out: a key-value store.
"""

import os
from collections.abc import Mapping
from typing import Any

PROTOCOLS = ("s3", "gs")


def bucket_of(path: str) -> tuple[str, str]:
    """A URL as its bucket and the key in it."""
    bucket, _, key = path.partition("://")[2].partition("/")
    return bucket, key


def key_value_store(path: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The place as TensorStore takes it, with the endpoint, region and credentials of the filesystem."""
    variables = os.environ if environment is None else environment
    bucket, key = bucket_of(path)
    if path.startswith("gs://"):
        if emulator := variables.get("STORAGE_EMULATOR_HOST"):
            os.environ["TENSORSTORE_GCS_HTTP_URL"] = emulator if "://" in emulator else f"http://{emulator}"
        return {"driver": "gcs", "bucket": bucket, "path": key}
    store: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": key}
    told_endpoint, told_region = None, None
    if environment is None:
        from ponente.store.aws_config import endpoint_and_region

        told_endpoint, told_region = endpoint_and_region()
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL") or told_endpoint
    region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or told_region
    if endpoint:
        store["endpoint"] = endpoint
        region = region or "us-east-1"
    if region:
        store["aws_region"] = region
    if variables.get("AWS_ACCESS_KEY_ID"):
        store["aws_credentials"] = {"type": "environment"}
    return store
