"""Processes that come together, agree, and learn of each other's end; threads stand for processes here."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ponente.cluster.gang import Alone, GangError, SocketGang, first_then_others, from_first


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def joined(count: int, act: Callable[[SocketGang], Any]) -> list[Any]:
    """What each of so many processes made of the gang."""
    address = free_address()

    def run(index: int) -> Any:
        return act(SocketGang.join(address, index, count, what="run", timeout=20))

    with ThreadPoolExecutor(count) as threads:
        return [future.result(timeout=30) for future in [threads.submit(run, index) for index in range(count)]]


def test_each_gets_what_all_gave_in_order() -> None:
    def act(gang: SocketGang) -> Any:
        first = gang.gather("a", {"mine": gang.index})
        second = [gang.gather(f"b-{number}", number * gang.index) for number in range(50)]
        shared = from_first(gang, "c", f"from {gang.index}")
        gang.close()
        return first, second[-1], shared

    expected = [{"mine": 0}, {"mine": 1}, {"mine": 2}], [0, 49, 98], "from 0"
    assert joined(3, act) == [expected] * 3


def test_threads_of_one_process_gather_beside_each_other() -> None:
    names = [f"n{number}" for number in range(8)]

    def act(gang: SocketGang) -> Any:
        order = names if gang.index else names[::-1]
        with ThreadPoolExecutor(len(names)) as threads:
            found = dict(
                zip(order, threads.map(lambda name: gang.gather(name, name + str(gang.index)), order), strict=True)
            )
        gang.close()
        return found

    assert joined(2, act) == [{name: [f"{name}0", f"{name}1"] for name in names}] * 2


def test_the_first_does_a_thing_before_the_others() -> None:
    done: list[int] = []

    def act(gang: SocketGang) -> None:
        with first_then_others(gang, "build"):
            done.append(gang.index)
        gang.close()

    joined(3, act)
    assert done[0] == 0 and sorted(done) == [0, 1, 2]


def test_one_process_is_a_gang_too() -> None:
    assert Alone().gather("x", 7) == [7]
    with first_then_others(Alone(), "x"):
        pass


def test_missing_processes_are_named_to_all_that_are_there() -> None:
    address = free_address()
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(lambda index=index: SocketGang.join(address, index, 4, what="run", timeout=1))  # type: ignore[misc]
            for index in (0, 2)
        ]
        for one in waiting:
            with pytest.raises(GangError, match=r"found 2 of 4 processes after 1 s; needed process 1, 3 as well"):
                one.result(timeout=20)


def test_a_first_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(GangError, match=r"found no process 0 at 127.0.0.1:\d+ after 0 s"):
        SocketGang.join(free_address(), 1, 2, what="run", timeout=0.3)


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("", 0)) as taken, pytest.raises(GangError, match="in use"):
        SocketGang.join(f"127.0.0.1:{taken.getsockname()[1]}", 0, 2, what="run", timeout=1)


@pytest.mark.parametrize(
    ("index", "count", "what", "found"),
    [
        (1, 3, "run", "found num_processes: 3 in process 1, and 2 in process 0"),
        (5, 2, "run", "found process_id: 5 of 2"),
        (1, 2, "another", "found process 1 with another config"),
    ],
)
def test_a_process_that_does_not_belong_is_refused(index: int, count: int, what: str, found: str) -> None:
    address = free_address()
    with ThreadPoolExecutor(2) as threads:
        first: Future[Any] = threads.submit(SocketGang.join, address, 0, 2, what="run", timeout=3)
        with pytest.raises(GangError, match=found):
            SocketGang.join(address, index, count, what=what, timeout=3)
        second = SocketGang.join(address, 1, 2, what="run", timeout=3)  # the right one still gets in
        gang = first.result(timeout=10)
        closing = threads.submit(gang.close)
        second.close()
        closing.result(timeout=10)


def test_a_stranger_on_the_port_does_no_harm() -> None:
    address = free_address()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(SocketGang.join, address, 0, 2, what="run", timeout=20)
        host, port = address.split(":")
        while True:
            try:
                with socket.create_connection((host, int(port)), timeout=5) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                break
            except ConnectionRefusedError:
                continue
        second = SocketGang.join(address, 1, 2, what="run", timeout=20)
        closing = threads.submit(first.result(timeout=20).close)
        second.close()
        closing.result(timeout=20)


def test_the_others_learn_at_once_that_a_process_is_gone() -> None:
    told: list[str] = []
    all_told = threading.Event()

    def note(message: str, code: int) -> None:
        assert code == 1
        told.append(message)
        if len(told) == 2:
            all_told.set()

    def act(gang: SocketGang) -> Any:
        if gang.index == 1:
            gang.gather("begin")
            gang._hang_up()  # as its death would
            return "gone"
        gang.when_lost(note)
        with pytest.raises(GangError, match=r"process 1 is gone"):
            gang.gather("begin")  # may be told of already
            gang.gather("never")
        return "told"

    assert joined(3, act) == ["told", "gone", "told"]
    assert all_told.wait(10) and all("process 1 is gone" in one for one in told)


def test_the_others_are_told_why_a_process_ends() -> None:
    def act(gang: SocketGang) -> Any:
        if gang.index == 2:
            gang.gather("begin")
            gang.fail("found no disk")
            return None
        with pytest.raises(GangError, match=r"process 2 ended: found no disk"):
            gang.gather("begin")  # may be told of already
            gang.gather("never")
        return None

    joined(3, act)
