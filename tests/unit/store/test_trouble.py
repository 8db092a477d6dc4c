"""Sentences about places that cannot be used."""

import errno
import os
import re

import pytest

from ponente.store.trouble import sentence_of


@pytest.mark.parametrize(
    ("number", "path", "said"),
    [
        (
            errno.EACCES,
            "s3://b/x",
            "found s3://b/x, where .*; needed leave to read and write. Look at AWS_",
        ),
        (errno.EACCES, "gs://b/x", "Look at GOOGLE_APPLICATION_CREDENTIALS"),
        (errno.EIO, "s3://b/x", "s3://b/x; needed a store that can be reached. Look at AWS_ENDPOINT_URL"),
        (errno.EACCES, "/x", "found that /x cannot be used .*; needed a place of your own"),
        (errno.ENOSPC, "/x", "Make room and run the command again"),
    ],
)
def test_what_a_user_can_mend_is_said(number: int, path: str, said: str) -> None:
    sentence = sentence_of(OSError(number, os.strerror(number), path))
    assert sentence is not None
    assert re.search(said, sentence)


def test_what_is_ours_to_mend_is_not() -> None:
    assert sentence_of(OSError(errno.EIO, "broken", "/x")) is None
    assert sentence_of(FileNotFoundError(errno.ENOENT, "gone", "/x")) is None
