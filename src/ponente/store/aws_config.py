"""What ~/.aws/config says of a store, as the filesystem of S3 reads it."""

from botocore.configprovider import ConfiguredEndpointProvider
from botocore.session import Session


def endpoint_and_region() -> tuple[str | None, str | None]:
    """Those of the profile that is used, if it names them."""
    session = Session()
    endpoint = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    return endpoint, session.get_config_variable("region")
