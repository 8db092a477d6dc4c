"""What ~/.aws/config says of a store, as the filesystem of S3 reads it."""

import os
from functools import cache

from botocore.exceptions import ProfileNotFound
from botocore.session import Session

from ponente.config.errors import RefusedError

_IGNORED = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"


@cache
def endpoint_and_region(profile: str | None, file: str | None) -> tuple[str | None, str | None]:
    """Those of a profile, if it names them.

    Args:
        file: another than ~/.aws/config.
    """
    session = Session(profile=profile)
    if file is not None:
        session.set_config_variable("config_file", file)
    try:
        scoped = session.get_scoped_config()
    except ProfileNotFound as error:
        raise RefusedError(f"found AWS_PROFILE={profile}; needed a profile of {file or '~/.aws/config'}") from error
    services = session.full_config.get("services", {}).get(scoped.get("services"), {})
    endpoint = services.get("s3", {}).get("endpoint_url") or scoped.get("endpoint_url")
    if os.environ.get(_IGNORED, "").lower() == "true":
        endpoint = None
    return endpoint, scoped.get("region")
