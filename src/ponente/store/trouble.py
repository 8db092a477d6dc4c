"""What the trouble with a place is, in a sentence for people, where it is none of ours."""

import errno

from ponente.store.volume import is_no_space

CREDENTIALS = {  # the variables that they come from
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL for another store than Amazon's)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_ADDRESSES = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}


def sentence_of(error: OSError) -> str | None:
    """What was found, needed, and is to be done; None where the error is nothing that a user can mend."""
    place = str(error.filename or "a file")
    protocol, is_url, _ = place.partition("://")
    if is_no_space(error):
        return f"{error}\nMake room and run the command again: what is done stays."
    if is_url and error.errno == errno.EACCES:
        return (
            f"found {place}, where {error.strerror}; needed leave to read and write. Look at "
            f"{CREDENTIALS[protocol]}, and at what they may do there."
        )
    if is_url and error.errno == errno.EIO:
        return (
            f"{error.strerror}: {place}; needed a store that can be reached. Look at {_ADDRESSES[protocol]} and the "
            "network, and run the command again: what is done stays."
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"found that {place} cannot be used ({error.strerror}); needed a place of your own. Give another, such as "
            "--data.cache_dir or --prefix."
        )
    return None
