"""The volume of buckets: S3 and what speaks like it, and Google Cloud Storage.

Exclusive create is the store's own (If-None-Match, generation match); a request that is sent twice, because its answer
was lost, is known by a mark that its object carries. What fails for the moment is tried again, with pauses that grow.
Files are written on the local disk and sent when they are whole.
"""

import contextlib
import datetime
import errno
import logging
import os
import random
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from ponente.config.errors import RefusedError
from ponente.store.filesystems import filesystem, forget, prepare
from ponente.store.objects import ObjectVolume
from ponente.store.paths import PRIVATE_MARK, basename, join, parent, private_path, protocol_of
from ponente.store.remote import bucket_of
from ponente.store.trouble import CREDENTIALS
from ponente.store.usage import last_changed

Result = TypeVar("Result")

SECONDS_VARIABLE = "PONENTE_STORE_SECONDS"  # how long what fails for the moment is tried again
_TRIES, _SECONDS, _FIRST_PAUSE, _LONGEST_PAUSE = 9, 120.0, 0.2, 20.0  # pauses alone are a minute in all
_FOR_THE_MOMENT = {
    errno.EIO,
    errno.EREMOTEIO,
    errno.EBUSY,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.EPIPE,
}
_BUSY = (408, 410, 429)  # 410: an upload that is gone; another try begins another
_LARGE_BYTES = 5 << 20  # files that are sent in parts
_NETWORK = {"aiohttp", "aiobotocore", "botocore", "gcsfs", "google", "urllib3", "requests"}
_THREADS = 8  # that send or remove objects at once
_LEFT_SECONDS = 24 * 3600.0
_MARK = "ponente-mark"

logger = logging.getLogger(__name__)


class BucketVolume(ObjectVolume):
    """All buckets of a protocol."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self._tried: set[str] = set()  # buckets that were seen to create exclusively
        self._pause: Callable[[float], None] = time.sleep
        prepare(protocol)  # or it is refused
        forget(protocol)  # what the environment says of credentials and endpoints is read now

    @property
    def _fs(self) -> AbstractFileSystem:
        return filesystem(self.protocol)

    def read(self, path: str) -> bytes:
        return self._patiently(path, lambda: super(BucketVolume, self).read(path))

    def exists(self, path: str) -> bool:
        return self._patiently(path, lambda: super(BucketVolume, self).exists(path))

    def is_folder(self, path: str) -> bool:
        return self._patiently(path, lambda: super(BucketVolume, self).is_folder(path))

    def size(self, path: str) -> int:
        return self._patiently(path, lambda: super(BucketVolume, self).size(path))

    def names(self, folder: str) -> list[str]:
        return self._patiently(folder, lambda: super(BucketVolume, self).names(folder))

    def create(self, path: str, data: bytes) -> bool:
        self._try_out(path)
        return self._created(path, lambda mark: self._fs.pipe_file(path, data, mode="create", **self._marked(mark)))

    def replace(self, path: str, data: bytes) -> None:
        self._patiently(path, lambda: super(BucketVolume, self).replace(path, data))

    def private_place(self, path: str) -> str:
        """On the local disk."""
        _remove_remains()
        return f"{tempfile.mkdtemp(prefix=f'{PRIVATE_MARK}{os.getpid()}-')}/{basename(path)}"

    def publish_file(self, private: str, path: str) -> bool:
        if protocol_of(private) != "file":
            return super().publish_file(private, path)
        self._try_out(path)
        try:
            return self._created(path, lambda mark: self._put(private, path, mode="create", **self._marked(mark)))
        finally:
            shutil.rmtree(parent(private))

    def publish_folder(self, private: str, path: str) -> bool:
        if protocol_of(private) != "file":
            return super().publish_folder(private, path)
        there, sent = private_path(path), []
        try:
            for folder, _, files in os.walk(private):
                below = os.path.relpath(folder, private)
                sent += [(os.path.join(folder, name), join(there, below, name)) for name in files]
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="bucket") as threads:
                list(threads.map(lambda pair: self._send(*pair), sent))
        except BaseException:
            self.remove(parent(there))
            raise
        finally:
            shutil.rmtree(parent(private))
        return super().publish_folder(there, path)

    def leftovers(self, folder: str) -> list[str]:
        """Those of yesterday and before: what is newer may be written by another process right now."""
        return [place for place in super().leftovers(folder) if self._age(place) > _LEFT_SECONDS]

    def _age(self, path: str) -> float:
        """Seconds since the last of the objects below a name was written."""
        found = self._patiently(path, lambda: self._fs.find(path, detail=True)).values()
        times = [one.get("LastModified") or one.get("mtime") for one in found]
        now = datetime.datetime.now(datetime.UTC)
        return min(((now - when).total_seconds() for when in times if when is not None), default=0.0)

    def is_shared(self) -> bool:
        return True

    def _send(self, local: str, path: str) -> None:
        self._patiently(path, lambda: self._put(local, path))

    def _put(self, local: str, path: str, **options: Any) -> None:
        try:
            self._fs.put_file(local, path, **options)
        except FileNotFoundError as error:
            # A part that is sent again after the whole was made, or after the store forgot it, finds no upload.
            if "mode" in options and self.exists(path):
                raise FileExistsError(path) from error
            if not os.path.exists(local) or os.path.getsize(local) < _LARGE_BYTES:
                raise
            raise ConnectionError(f"the upload is gone ({error})") from error

    def _find(self, path: str) -> list[str]:
        return self._patiently(path, lambda: super(BucketVolume, self)._find(path))

    def _remove_one(self, path: str) -> None:
        def remove() -> None:
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                return

        self._patiently(path, remove)

    def _remove_all(self, path: str) -> None:
        found = self._find(path)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="bucket") as threads:
            list(threads.map(self._remove_one, [f"{self.protocol}://{name}" for name in found]))

    def _created(self, path: str, put: Callable[[str], Any]) -> bool:
        """Whether our object is the one that is there now, however often its request arrived."""
        mark = secrets.token_hex(8)

        def once() -> bool:
            try:
                put(mark)
            except FileExistsError:
                return self._mark_of(path) == mark
            except OSError as error:
                if not _is_refused_condition(error) or not self.exists(path):  # not all stores say which one failed
                    raise
                return self._mark_of(path) == mark
            return True

        return self._patiently(path, once)

    def _marked(self, mark: str) -> dict[str, Any]:
        return {"Metadata": {_MARK: mark}} if self.protocol == "s3" else {"metadata": {_MARK: mark}}

    def _mark_of(self, path: str) -> str | None:
        if self.protocol == "s3":
            found: dict[str, str] = self._fs.metadata(path)
            return found.get(_MARK) or found.get(_MARK.replace("-", "_"))
        held: dict[str, str] = self._fs.info(path).get("metadata") or {}
        return held.get(_MARK)

    def _try_out(self, path: str) -> None:
        """Refuses a store that lets two create the same object, before anything rests on it."""
        bucket, _ = bucket_of(path)
        if bucket in self._tried:
            return
        probe = f"{parent(path)}/{PRIVATE_MARK}try-{secrets.token_hex(6)}"
        put = lambda mark: self._fs.pipe_file(probe, b"1", mode="create", **self._marked(mark))  # noqa: E731
        first, second = (self._created(probe, put) for _ in range(2))
        self._remove_one(probe)
        if not first or second:
            raise RefusedError(
                f"found {self.protocol}://{bucket}, a store that lets two create the same object; needed one with "
                "conditional writes (If-None-Match), such as S3 or GCS. Use another, or a local folder."
            )
        self._tried.add(bucket)

    def _patiently(self, path: str, operation: Callable[[], Result]) -> Result:
        """Tries again what fails for the moment, after pauses that grow; what fails for good is raised at once."""
        until = time.monotonic() + float(os.environ.get(SECONDS_VARIABLE) or _SECONDS)
        for number in range(_TRIES):
            try:
                return operation()
            except Exception as error:
                if "Credentials" in type(error).__name__:
                    raise RefusedError(
                        f"found no credentials for {path} ({_words(error)}); needed those of its store. Set "
                        f"{CREDENTIALS[self.protocol]}, or log in with the vendor's tool."
                    ) from error
                if _is_forbidden(error) and not is_for_the_moment(error):
                    raise PermissionError(errno.EACCES, f"the store refuses access ({_words(error)})", path) from error
                if not is_for_the_moment(error):
                    raise
                if number == _TRIES - 1 or time.monotonic() > until:
                    raise OSError(
                        errno.EIO, f"found no answer from the store after {number + 1} tries ({_words(error)})", path
                    ) from error
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**number) * random.uniform(0.5, 1.5)
                level = logging.WARNING if number > 2 else logging.DEBUG
                logger.log(level, "%s: %s; trying again in %.1f s", path, _words(error), pause)
                self._pause(pause)
        raise AssertionError


@cache
def _remove_remains() -> None:
    """What processes that were killed left on the local disk, a day and more ago."""
    for path in Path(tempfile.gettempdir()).glob(f"{PRIVATE_MARK}*"):
        owner = path.name.removeprefix(PRIVATE_MARK).partition("-")[0]
        is_old = time.time() - (last_changed(str(path)) or time.time()) > _LEFT_SECONDS
        if is_old and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):  # another user's, or gone by now
                shutil.rmtree(path)


def is_for_the_moment(error: BaseException) -> bool:
    """Whether an error of a store may go away: the network's, a time-out, a store that is busy."""
    if isinstance(error, FileNotFoundError | FileExistsError | PermissionError | NotADirectoryError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if (code := _google_s_code(error)) is not None:
        return code in _BUSY or code >= 500
    if type(error).__module__.partition(".")[0] in _NETWORK:
        return True
    if not isinstance(error, OSError):
        return False
    return error.errno in _FOR_THE_MOMENT or (
        _is_forbidden(error) and bool(re.search(r"(?i)rate ?limit|quota", str(error)))
    )


def _google_s_code(error: BaseException) -> int | None:
    """Of an answer of Google's store, as gcsfs tells it."""
    is_answer = (type(error).__module__, type(error).__name__) == ("gcsfs.retry", "HttpError")
    code = getattr(error, "code", None) if is_answer else None
    return code if isinstance(code, int) else None


def _is_forbidden(error: BaseException) -> bool:
    """Whether we may not; gcsfs has no error of its own for that."""
    if _google_s_code(error) == 401:
        return True
    return isinstance(error, PermissionError) or (isinstance(error, OSError) and str(error).startswith("Forbidden: "))


def _is_refused_condition(error: OSError) -> bool:
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
