"""Building a cache beside its reader: work may begin on the first rows while the rest is being tokenized.

In: what the cache is of. Out: a handle with the growing cache. The build runs units in order, in worker processes of
its own; if it fails, whoever waits for more rows gets its error.
"""

import threading
import time
from collections.abc import Callable

from ponente.store.paths import absolute
from ponente.store.token_cache.cache import TokenCache, open_growing_cache
from ponente.store.token_cache.ledger import CacheError, CacheLedger
from ponente.tokens.build import build_cache
from ponente.tokens.progress import BuildProgress
from ponente.tokens.spec import CacheSpec

_POLL_SECONDS = 0.2


class OnlineBuild:
    """A build that runs in the background of this process.

    Example:
        build = OnlineBuild(spec)
        cache = build.cache(min_tokens=1 << 20)   # returns when that much is there
        build.result()                            # waits for the end
    """

    def __init__(
        self,
        spec: CacheSpec,
        *,
        workers: int | None = None,
        on_progress: Callable[[BuildProgress], None] | None = None,
    ) -> None:
        self._path = absolute(spec.path)
        self._ledger: CacheLedger | None = None
        self._error: BaseException | None = None
        self._begun = threading.Event()  # what lies there is known to be of the config
        self._thread = threading.Thread(target=self._run, args=(spec, workers, on_progress), daemon=True)
        self._thread.start()

    def _run(self, spec: CacheSpec, workers: int | None, on_progress: Callable[[BuildProgress], None] | None) -> None:
        try:
            self._ledger = build_cache(
                spec, workers=workers, on_progress=on_progress, in_order=True, on_begun=self._begun.set
            )
        except BaseException as error:  # noqa: BLE001 (raised again where somebody waits)
            self._error = error

    @property
    def is_running(self) -> bool:
        """Whether it is still at work."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raises what the build raised, if it failed."""
        if self._error is not None:
            raise self._error

    def result(self, timeout_seconds: float | None = None) -> CacheLedger:
        """Waits for the end of the build; raises what it raised."""
        self._thread.join(timeout_seconds)
        self.check()
        if self._ledger is None:
            raise TimeoutError(f"{self._path} is not finished after {timeout_seconds} seconds")
        return self._ledger

    def cache(self, *, min_rows: int = 1, min_tokens: int = 1, timeout_seconds: float | None = None) -> TokenCache:
        """The cache, as soon as it has so many rows and tokens, or is finished; raises what the build raised."""
        began, cache = time.monotonic(), None
        while True:
            running = self.is_running
            if cache is None and (self._begun.is_set() or self._ledger is not None):
                cache = open_growing_cache(self._path)
            if cache is not None:
                cache.refresh()
                if cache.is_finished or (cache.rows >= min_rows and cache.tokens >= min_tokens):
                    return cache
            if not running:
                self.result()
                raise CacheError(f"found {self._path} built but unfinished; needed a finished cache. Build it again.")
            if timeout_seconds is not None and time.monotonic() - began > timeout_seconds:
                raise TimeoutError(f"{self._path} has too few rows after {timeout_seconds} seconds")
            time.sleep(_POLL_SECONDS)
