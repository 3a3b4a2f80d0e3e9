"""The address on which our servers listen."""

import asyncio
import socket

import pytest

from data_bridge.errors import ConfigurationError
from trainer.cli.listening import listen


async def test_no_reply_waits_until_the_one_before_it_was_acknowledged() -> None:
    """Headers and body of a reply are two packets: with Nagle's algorithm the second waits for the client, 40 ms."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    server = await asyncio.start_server(connected, sock=listen("127.0.0.1", 0))
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await accepted == 1
        writer.close()


def test_a_port_in_use_is_one_sentence() -> None:
    with listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"--port {port} cannot be used"):
            listen("127.0.0.1", port)
