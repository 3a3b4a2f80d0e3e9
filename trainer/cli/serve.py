"""Serve the promoted checkpoint over an OpenAI-compatible API."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import run_command
from trainer.cli.listening import listen, serve_until_asked
from trainer.cli.output import say
from trainer.config.commands import ServeSettings

if TYPE_CHECKING:
    from trainer.serve.checkpoints import ServedCheckpoints


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        ServeSettings,
        argv,
        prog="serve.py",
        description="Serves the promoted checkpoint of the CPU backend over an OpenAI-compatible API.\n"
        "Follows promotions and rollbacks without dropping a request; MODEL@stepN pins a checkpoint.",
        epilog="exit codes:\n  0 stopped on request; 2 configuration, or the address is in use",
    )


async def _work(settings: ServeSettings) -> int:
    key = settings.secrets.serve_key.get_secret_value() if settings.secrets.serve_key is not None else None
    if key is None and not _is_loopback(settings.server.host):
        raise ConfigurationError(
            f"--host {settings.server.host} can be reached from other hosts: set HINDSIGHT_SERVE_KEY, "
            "or serve on 127.0.0.1."
        )
    listening = listen(settings.server.host, settings.server.port)  # before the model is loaded

    async with _checkpoints(settings) as checkpoints, _promotions_followed(settings):
        checkpoints.refresh()
        checkpoints.check_served()
        await _serve(settings, checkpoints, listening, key)
    return 0


@asynccontextmanager
async def _checkpoints(settings: ServeSettings) -> AsyncIterator[ServedCheckpoints]:
    """The checkpoints on the engine of this process, or on those of --engines."""
    from trainer.inference.chat_models import open_engine
    from trainer.inference.checkpoints import store_of
    from trainer.serve.checkpoints import ServedCheckpoints
    from trainer.serve.engines import open_engines

    home, model, number = settings.common.home, settings.model, settings.server.engines
    served = partial(ServedCheckpoints, home, model.model, store_of(home, model.model), base_model=model.base_model)
    if number == 1:
        async with open_engine(model, home) as engine:
            yield served(engine.model)
    else:
        async with open_engines(model, home, number) as engines:
            yield served(engines.model, take_up=engines.take_up)


def _promotions_followed(settings: ServeSettings) -> AbstractAsyncContextManager[None]:
    """Promotions from the ledger if a database is set; otherwise only from the file, which needs no Postgres."""
    from trainer.serve.checkpoints import following_ledger

    if settings.secrets.database_url is None:
        return nullcontext()
    return following_ledger(
        settings.secrets.database_url.get_secret_value(), settings.common.home, settings.model.model
    )


async def _serve(
    settings: ServeSettings, checkpoints: ServedCheckpoints, listening: socket.socket, key: str | None
) -> None:
    from trainer.hosting.connections import server_config
    from trainer.serve.app import make_app
    from trainer.serve.wire import RequestError

    server = settings.server
    hosts = (server.host, *server.allowed_hosts)
    app = make_app(checkpoints, key=key, most_waiting=server.max_waiting, hosts=hosts)
    host, port = listening.getsockname()[:2]
    config = server_config(
        app,
        connections=server.max_connections,
        patience=server.client_timeout.total_seconds(),
        too_late=json.dumps(RequestError(408, "The request did not arrive in time.").body()).encode(),
    )

    def started() -> None:
        say(f"Serving {checkpoints.served_name} as {settings.model.model!r} at http://{host}:{port}/v1")

    await serve_until_asked(config, listening, started)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
