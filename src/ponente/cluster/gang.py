"""Processes that do one thing together: that all are there, what they agree on, and that one of them is gone.

In: the address of the first process, how many there are, and which one this is. Out: a `Gang`, whose `gather` gives
each what all of them gave. All talk to the first, over connections that stay open: when a process dies its connection
does, and the others learn of it at once, whatever they wait for.
"""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ponente.config.errors import UserError

_POLL_SECONDS = 0.2
_END = "the end of the gang"
_HELLO_SECONDS = 10.0  # for a process that has connected to say who it is
_KEEPALIVE_TCP = (  # a host that is gone is known after 30 seconds, whether something was sent to it or not
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 30_000),
)

logger = logging.getLogger(__name__)


class GangError(UserError, RuntimeError):
    """A gang that did not come together, or of which a process is gone."""


class Gang(Protocol):
    """Some processes, each with a number; the first is 0."""

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def gather(self, name: str, value: Any = None) -> list[Any]:
        """What all processes gave under a name, in their order; returns when all have. Values are JSON."""


class Alone:
    """A gang of one."""

    index, count = 0, 1

    def gather(self, name: str, value: Any = None) -> list[Any]:
        return [value]


def is_first(gang: Gang) -> bool:
    return gang.index == 0


def from_first(gang: Gang, name: str, value: Any) -> Any:
    """The first process's value."""
    return gang.gather(name, value)[0]


@contextlib.contextmanager
def first_then_others(gang: Gang, name: str) -> Iterator[None]:
    """Lets the first process do something before all others do it: build what these then find."""
    if not is_first(gang):
        gang.gather(name)
    yield
    if is_first(gang):
        gang.gather(name)


class SocketGang:
    """A gang whose processes talk over sockets. Close it, or `fail` to tell the others why this one ends."""

    def __init__(self, index: int, peers: dict[int, "_Line"], count: int) -> None:
        """Use `join`."""
        self.index, self.count = index, count
        self._peers = peers  # of the first process all others; of another, the first
        self._given: dict[str, dict[int, Any]] = {}
        self._results: dict[str, list[Any]] = {}
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._is_ending = False
        self._code = 1
        self._on_failure: Callable[[str, int], None] = lambda *_: None
        self._has_acted = threading.Event()
        for number, line in peers.items():
            threading.Thread(target=self._listen, args=(number, line), name=f"gang-{number}", daemon=True).start()

    @classmethod
    def join(cls, address: str, index: int, count: int, *, what: str, timeout: float) -> "SocketGang":
        """Waits until all processes are there.

        Args:
            address: `host:port` of the first process, on which it listens.
            what: must be the same for all, such as a digest of their config.
            timeout: seconds; then an error names the processes that are missing.
        """
        host, _, port = address.rpartition(":")
        if index == 0:
            return cls(0, _welcome_all((host, int(port)), count, what, timeout), count)
        return cls(index, {0: _say_hello((host, int(port)), index, count, what, timeout)}, count)

    def when_lost(self, act: Callable[[str, int], None]) -> None:
        """What to do, in a thread, when a process is gone or has failed: it is told why, and an exit code for that."""
        with self._changed:
            self._on_failure = act
            failure = self._failure
        if failure is not None:
            act(failure, self._code)

    def wait_for_loss(self, seconds: float) -> None:
        """Returns when another process was lost and `when_lost` has acted, or after so long.

        For one whose work with the others has failed: its gang may be about to know why.
        """
        self._has_acted.wait(seconds)

    def gather(self, name: str, value: Any = None) -> list[Any]:
        if self.index == 0:
            self._take(0, name, value)
        else:
            self._send(0, {"name": name, "value": value})
        with self._changed:
            while name not in self._results:
                if self._failure is not None:
                    raise GangError(self._failure)
                self._changed.wait()
            return self._results.pop(name)

    def fail(self, message: str, code: int = 1) -> None:
        """Tells the others that this process ends, and why; they end too, with that exit code."""
        self._is_ending = True
        for number in self._peers:
            with contextlib.suppress(GangError):
                self._send(number, {"failed": f"process {self.index} ended: {message}", "code": code})
        self._hang_up()

    def close(self) -> None:
        """Ends the gang, when all processes have come to its end."""
        self.gather(_END)
        self._hang_up()

    def _hang_up(self) -> None:
        for line in self._peers.values():
            line.close()

    def _listen(self, number: int, line: "_Line") -> None:
        try:
            for message in line.messages():
                if "failed" in message:
                    self._lose(number, message["failed"], message.get("code", 1))
                    return
                if "values" in message:
                    with self._changed:
                        self._is_ending = self._is_ending or message["name"] == _END
                        self._results[message["name"]] = message["values"]
                        self._changed.notify_all()
                else:
                    self._take(number, message["name"], message["value"])
        except (OSError, ValueError) as error:
            logger.debug("the connection to process %d ended: %s", number, error)
        finally:
            line.finish()
        self._lose(number, f"process {number} is gone: its connection ended")

    def _take(self, number: int, name: str, value: Any) -> None:
        """In the first process: notes what one gave, and tells all when it was the last."""
        with self._changed:
            given = self._given.setdefault(name, {})
            given[number] = value
            if len(given) < self.count:
                return
            values = [given[one] for one in range(self.count)]
            del self._given[name]
            self._is_ending = self._is_ending or name == _END
        for peer in self._peers:
            with contextlib.suppress(GangError):  # its listener tells of it
                self._send(peer, {"name": name, "values": values})
        with self._changed:  # last, for this process may hang up then
            self._results[name] = values
            self._changed.notify_all()

    def _send(self, number: int, message: dict[str, Any]) -> None:
        try:
            self._peers[number].send(message)
        except OSError as error:
            raise GangError(self._failure or f"process {number} is gone: {error}") from error

    def _lose(self, number: int, message: str, code: int = 1) -> None:
        with self._changed:
            if self._is_ending or self._failure is not None:
                return
            self._failure, self._code = message, code
            self._changed.notify_all()
        for peer in self._peers:
            if peer != number:
                with contextlib.suppress(GangError):
                    self._send(peer, {"failed": message, "code": code})
        self._on_failure(message, code)
        self._has_acted.set()


class _Line:
    """A connection on which messages go both ways, one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE_TCP:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()
        self._incoming = connection.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._incoming.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("it was closed")
        message: dict[str, Any] = json.loads(line)
        return message

    def messages(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self.receive()

    def wait_at_most(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Ends the connection; who waits for a message is told."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Gives back what the connection took; for the one who reads from it."""
        self.close()
        self._incoming.close()
        self._connection.close()


def _welcome_all(address: tuple[str, int], count: int, what: str, timeout: float) -> dict[int, _Line]:
    """In the first process: the connections of all others."""
    try:
        listener = socket.create_server(("", address[1]))
    except OSError as error:
        raise GangError(
            f"found port {address[1]} of this machine in use ({error.strerror}); needed it free for the other "
            "processes to find this one. Give another in trainer.distributed.coordinator_address, to all of them."
        ) from error
    until, there = time.monotonic() + timeout, dict[int, _Line]()
    listener.settimeout(_POLL_SECONDS)
    with listener:
        while len(there) < count - 1:
            if time.monotonic() > until:
                missing = [str(number) for number in range(1, count) if number not in there]
                message = (
                    f"found {len(there) + 1} of {count} processes after {timeout:.0f} s; needed "
                    f"process {', '.join(missing)} as well. See why it did not start, or does not reach "
                    f"{address[0]}:{address[1]} (trainer.distributed)."
                )
                for line in there.values():
                    with contextlib.suppress(OSError):
                        line.send({"refused": message})
                    line.finish()
                raise GangError(message)
            with contextlib.suppress(TimeoutError):
                _welcome(_Line(listener.accept()[0]), there, count, what)
    for line in there.values():
        line.send({"welcome": count})
    return there


def _welcome(line: _Line, there: dict[int, _Line], count: int, what: str) -> None:
    """Takes a process in, or tells it why not."""
    line.wait_at_most(_HELLO_SECONDS)
    try:
        hello = line.receive()
        number = int(hello["process"])
    except (OSError, ValueError, KeyError, TypeError):
        logger.warning("someone who is no process of this run has connected; nothing is told to it")
        line.finish()
        return
    refusal = None
    if hello.get("count") != count:
        refusal = f"found num_processes: {hello.get('count')} in process {number}, and {count} in process 0"
    elif not 0 < number < count:
        refusal = f"found process_id: {number} of {count} processes"
    elif number in there:
        refusal = f"found a second process with process_id: {number}"
    elif hello.get("what") != what:
        refusal = f"found process {number} with another config than process 0 has"
    if refusal is not None:
        logger.warning("%s: refused", refusal)
        with contextlib.suppress(OSError):
            line.send({"refused": f"{refusal}; needed one config, and each process_id once. Start them alike."})
        line.finish()
        return
    line.wait_at_most(None)
    there[number] = line


def _say_hello(address: tuple[str, int], index: int, count: int, what: str, timeout: float) -> _Line:
    """In another process: the connection to the first, which may not have begun yet."""
    until = time.monotonic() + timeout
    while True:
        try:
            line = _Line(socket.create_connection(address, timeout=max(1.0, until - time.monotonic())))
            break
        except OSError as error:
            if time.monotonic() > until:
                raise GangError(
                    f"found no process 0 at {address[0]}:{address[1]} after {timeout:.0f} s ({error}); needed it "
                    "there. Start it, or correct trainer.distributed.coordinator_address."
                ) from error
            time.sleep(_POLL_SECONDS)
    line.wait_at_most(timeout + _HELLO_SECONDS)
    try:
        line.send({"process": index, "count": count, "what": what})
        answer = line.receive()
    except OSError as error:
        line.finish()
        raise GangError(f"found process 0 gone before all processes were there ({error}); start all again") from error
    if "refused" in answer:
        line.finish()
        raise GangError(answer["refused"])
    line.wait_at_most(None)
    return line
