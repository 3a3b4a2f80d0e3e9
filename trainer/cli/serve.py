"""Serve the promoted checkpoint over an OpenAI-compatible API."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import run_command
from trainer.config import ServeSettings


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        ServeSettings,
        argv,
        prog="serve.py",
        description="Serves the promoted checkpoint of the CPU backend over an OpenAI-compatible API.\n"
        "Promotions and rollbacks are followed without dropping a request; MODEL@stepN pins a checkpoint.",
    )


async def _work(settings: ServeSettings) -> int:
    key = settings.serve_key.get_secret_value() if settings.serve_key is not None else None
    if key is None and not _is_loopback(settings.host):
        raise ConfigurationError(
            f"--host {settings.host} can be reached from other hosts: set HINDSIGHT_SERVE_KEY, or serve on 127.0.0.1."
        )
    import uvicorn

    from trainer.backends.cpu import checkpoint_directory
    from trainer.inference.embedded_model import model_directory
    from trainer.inference.engine import Engine
    from trainer.serving.app import make_app
    from trainer.serving.checkpoints import ServedCheckpoints

    engine = Engine(model_directory(settings.base_model, settings.home), threads=settings.threads)
    checkpoints = ServedCheckpoints(
        settings.home,
        settings.model,
        lambda step: checkpoint_directory(settings.home, settings.model, step),
        engine.model,
    )
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(checkpoints, key=key, most_waiting=settings.most_waiting),
            host=settings.host,
            port=settings.port,
            log_level="warning",
            timeout_graceful_shutdown=30,
        )
    )
    checkpoints.refresh()
    print(
        f"Serving {checkpoints.served_name} as {settings.model!r} at http://{settings.host}:{settings.port}/v1",
        flush=True,
    )
    try:
        await server.serve()
    finally:
        await engine.close()
    return 0 if server.started else 2


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
