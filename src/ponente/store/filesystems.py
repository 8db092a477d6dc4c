"""Filesystems of buckets: fsspec's, with listings that are never remembered."""

import os
from typing import Any

import fsspec
import fsspec.config

from ponente.config.errors import RefusedError

_ZONAL_VARIABLE = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"  # zonal buckets, in which nothing is created exclusively
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "use_listings_cache": False,
        "config_kwargs": {
            "retries": {"mode": "standard", "max_attempts": 1},  # the filesystem, and volumes, try again themselves
            "connect_timeout": 10,
            "read_timeout": 60,
        },
    },
    "gs": {"use_listings_cache": False},
}


def prepare(protocol: str) -> None:
    """Has fsspec make filesystems of a protocol as we want them, wherever one is made."""
    if protocol == "gs":
        os.environ.setdefault(_ZONAL_VARIABLE, "false")
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise RefusedError(
            f"found a place of {protocol}://, for which {_PACKAGES[protocol]} is not installed; needed it. Run: "
            "pip install 'ponente[cloud]'"
        ) from error
    given = fsspec.config.conf.setdefault(protocol, {})
    for key, value in _OPTIONS[protocol].items():
        given.setdefault(key, value)
    if protocol == "gs":
        from ponente.store.google_options import options

        for key, value in options().items():
            given.setdefault(key, value)


def forget(protocol: str) -> None:
    """Has the filesystem made anew, with the credentials and endpoint that the environment has now."""
    fsspec.get_filesystem_class(protocol).clear_instance_cache()


def filesystem(protocol: str) -> Any:
    """The filesystem, of this process: fsspec makes another after a fork."""
    prepare(protocol)
    return fsspec.filesystem(protocol)
