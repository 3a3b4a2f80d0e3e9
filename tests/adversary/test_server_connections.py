"""serve.py under attack by connections: idle, slow, many, and never reading, they hold up nobody else."""

from __future__ import annotations

import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import psutil
import pytest

from tests.adversary.served import CHAT, QUESTION, SOON, Served, serving


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that waits for a client for 1.2 seconds only."""
    with serving(tmp_path_factory, "--client-timeout", "0.02m") as served:
        yield served


def is_closed_soon(connection: socket.socket, drop: bytes = b"") -> bool:
    """Whether the server ends ``connection``, to which ``drop`` is sent ten times a second. What it says is left."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        if poll.poll(100):
            return True
        try:
            connection.send(drop, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:
            return True
    return False


# Clients that hold a connection


def test_headers_that_come_byte_by_byte_do_not_hold_a_connection(hasty: Served) -> None:
    with hasty.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert is_closed_soon(connection, b"x")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_says_nothing_is_closed(hasty: Served) -> None:
    with hasty.connect() as connection:
        assert is_closed_soon(connection)


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 100000\r\n\r\n{",
            id="a question",
        ),
        pytest.param(
            "GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{", id="answered before its body"
        ),
        pytest.param(
            f"POST {CHAT} HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100000\r\n\r\n{{",
            id="refused before its body",
        ),
    ],
)
def test_a_body_that_comes_byte_by_byte_does_not_hold_a_connection(hasty: Served, opening: str) -> None:
    with hasty.connect() as connection:
        connection.sendall(opening.encode())
        assert is_closed_soon(connection, b"x")


def test_the_next_request_that_comes_byte_by_byte_does_not_hold_a_connection(hasty: Served) -> None:
    with hasty.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /")
        assert is_closed_soon(connection, b"x")


def test_a_client_that_never_reads_does_not_hold_a_connection(hasty: Served) -> None:
    requests = memoryview(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000_000)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", hasty.port))
        connection.settimeout(1)
        with suppress(OSError):  # the server reads no more while its answers are not read
            while requests:
                requests = requests[connection.send(requests) :]
        assert requests
        assert is_closed_soon(connection)


def test_a_long_answer_outlasts_the_clients_clock(hasty: Served) -> None:
    seconds, tokens = 0.0, 100
    while seconds < 1.5 and tokens < 2_000:
        started = time.monotonic()
        answer = hasty.post(n=4, max_tokens=tokens, temperature=2)
        assert answer.status_code == 200
        seconds, tokens = time.monotonic() - started, 2 * tokens


# Many clients


def allow_files(wanted: int) -> None:
    """Let this process open so many files, or skip."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"this machine allows {hard} open files, and the attack needs {wanted}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def hold(server: Served, stack: ExitStack, number: int, opening: bytes = b"") -> list[socket.socket]:
    held = []
    for _ in range(number):
        connection = stack.enter_context(server.connect())
        connection.sendall(opening)
        held.append(connection)
    return held


def drip(connections: list[socket.socket], enough: threading.Event) -> None:
    """A byte more of every header, again and again."""
    while not enough.is_set():
        for connection in connections:
            with suppress(OSError):
                connection.send(b"x", socket.MSG_DONTWAIT)
        enough.wait(0.2)


def test_2000_idle_and_slow_connections_leave_health_answers_under_way_and_memory_as_they_were(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    allow_files(2_600)
    slow = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 8_000
    begun = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{{"
    )
    enough = threading.Event()
    with serving(tmp_path_factory) as served, ExitStack() as stack:
        assert served.post().status_code == 200  # loads the model
        question = QUESTION | {"n": 4, "max_tokens": 1000, "stream": True, "temperature": 2}
        asking = httpx.stream("POST", served.url + CHAT, json=question, timeout=120)
        lines = stack.enter_context(asking).iter_lines()
        assert next(lines).startswith("data: ")
        before = served.megabytes()
        held = hold(served, stack, 700) + hold(served, stack, 300, b"GET")
        held += hold(served, stack, 500, slow) + hold(served, stack, 500, begun.encode())
        assert len(held) == 2_000
        dripping = threading.Thread(target=drip, args=(held[1000:], enough))
        dripping.start()
        try:
            seconds = [served.seconds_to_health() for _ in range(10)]
            grown = served.megabytes() - before
            assert server_connections(served) <= 1_100
        finally:
            enough.set()
            dripping.join()
        assert list(lines)[-2] == "data: [DONE]"
    assert max(seconds) < 5
    assert grown < 50


def server_connections(served: Served) -> int:
    connections = psutil.Process(served.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in connections)


def test_1100_idle_connections_leave_health_where_1024_files_are_all_there_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    allow_files(1_400)
    with serving(tmp_path_factory, files=1_024) as served, ExitStack() as stack:
        hold(served, stack, 1_100)
        assert max(served.seconds_to_health() for _ in range(5)) < 5
        assert served.post().status_code == 200


def test_a_newcomer_is_served_and_the_one_that_waited_longest_is_shed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory, "--max-connections", "8") as served, ExitStack() as stack:
        oldest, *others = hold(served, stack, 8)
        newest = hold(served, stack, 1)[0]
        assert is_closed_soon(oldest)
        newest.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert newest.recv(65_536).startswith(b"HTTP/1.1 200 ")
        others[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert others[-1].recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_large_bodies_that_never_end_take_a_bounded_memory_and_others_are_answered(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    opening = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"
    )
    with serving(tmp_path_factory) as served, ExitStack() as stack:
        assert served.post().status_code == 200
        before = served.megabytes()
        hold(served, stack, 150, opening.encode() + b" " * 1_900_000)
        assert served.post().status_code == 200
        grown = served.megabytes() - before
    assert grown < 150


def test_a_client_that_never_ends_its_body_does_not_hold_up_a_stop(tmp_path_factory: pytest.TempPathFactory) -> None:
    opening = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{{"
    )
    with serving(tmp_path_factory) as served, ExitStack() as stack:
        hold(served, stack, 5, opening.encode())
        assert served.seconds_to_health() < SOON  # by now the bodies have begun
        assert served.ended(signal.SIGTERM, SOON) == (0, "")
