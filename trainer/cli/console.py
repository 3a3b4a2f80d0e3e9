"""console: see trainings live, start and stop them, promote and roll back, in a browser or through an API."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import database_of, run_command
from trainer.cli.listening import listen, serve_until_asked
from trainer.cli.output import say, say_json
from trainer.config.console import ConsoleCommand, ConsoleSecrets

if TYPE_CHECKING:
    import socket

    from data_bridge.database import Database
    from trainer.console.keys import Keys
    from trainer.console.services import Services
    from trainer.lesson import Embedder
    from trainer.run.check_report import CheckReport
    from trainer.run.score import RewardScorer

_DESCRIPTION = """See what is trained live, start and stop it, promote and roll back: pages for a browser and an API.

The first start makes two keys in a file that only you can read, one for everything and one for looking only; a
link that logs in once is printed. Start and stop go through the database, so they work from any host for any host."""

_EPILOG = """examples:
  console.py                                       serve on http://127.0.0.1:8899
  console.py --watch                               what happens now, in this terminal
  console.py --json                                the same once, as JSON
  console.py --rotate-keys                         new keys; all logins end
  console.py --path /hindsight --proxy 127.0.0.1   behind a TLS proxy

exit codes:
  0 stopped on request; 2 configuration, or the address is in use"""

_MOST_CONNECTIONS = 2000
_PATIENCE = 30.0
"""Seconds that a client may keep us waiting for its request, or for its reading of an answer."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(work, ConsoleCommand, argv, prog="console.py", description=_DESCRIPTION, epilog=_EPILOG)


async def work(settings: ConsoleCommand) -> int:
    if settings.deed.rotate_keys:
        return _rotate(settings)
    if settings.deed.watch or settings.output.json_output:
        return await _watch(settings)
    _check(settings)
    listening = listen(settings.console.console_host, settings.console.console_port)
    keys, is_new = _keys(settings)
    async with database_of(settings, migrate=True) as database:
        await _serve(settings, database, listening, keys, is_new)
    return 0


def _check(settings: ConsoleCommand) -> None:
    """Refuse now what would otherwise fail when it is first needed."""
    if settings.judge.judge_model is not None:
        from trainer.judge.open import refuse_unusable

        refuse_unusable(settings.judge, settings.secrets)
    url = settings.secrets.notify_url
    if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
        raise ConfigurationError("HINDSIGHT_NOTIFY_URL: write an address that begins with https:// or http://.")
    command = settings.console.training_command
    if command is not None and shutil.which((shlex.split(command) or [""])[0]) is None:
        raise ConfigurationError(f"--command: there is no program {command!r} that can be executed.")


async def _watch(settings: ConsoleCommand) -> int:
    """Until Ctrl-C, which is a normal end; with ``--json`` alone once."""
    from trainer.console.watch import current, watch, watch_as_json

    model, is_json = settings.model.model, settings.output.json_output
    async with database_of(settings, existing=True) as database:
        if not settings.deed.watch:
            _, status = await current(database, model)
            say_json(asdict(status))
            return 0
        try:
            if is_json:
                await watch_as_json(database, model, say_json)
            else:
                from rich.live import Live

                with Live(refresh_per_second=4) as live:
                    await watch(database, model, live.update)
        except asyncio.CancelledError:
            return 0
    return 0


def _keys(settings: ConsoleCommand) -> tuple[Keys, bool]:
    from trainer.console.keys import Keys

    return Keys.open(settings.common.home, *_given(settings.secrets))


def _given(secrets: ConsoleSecrets) -> tuple[str | None, str | None]:
    full, read = secrets.console_key, secrets.console_read_key
    return (
        None if full is None else full.get_secret_value(),
        None if read is None else read.get_secret_value(),
    )


def _rotate(settings: ConsoleCommand) -> int:
    from trainer.console.keys import key_file, make_keys

    if settings.secrets.console_key is not None:
        raise ConfigurationError("--rotate-keys: the keys come from HINDSIGHT_CONSOLE_KEY; change it there.")
    make_keys(settings.common.home)
    say(f"New keys are in {key_file(settings.common.home).absolute()}; the old ones and all logins have ended.")
    return 0


async def _serve(
    settings: ConsoleCommand, database: Database, listening: socket.socket, keys: Keys, is_new: bool
) -> None:
    from trainer.console.app import make_app
    from trainer.console.door import Entrance
    from trainer.console.keys import key_file
    from trainer.console.problems import Refused
    from trainer.console.upkeep import upkeep
    from trainer.hosting.connections import server_config

    server, stop = settings.console, asyncio.Event()
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}{server.console_path}"

    def started() -> None:
        say(f"Console at {address} on {database.label}")
        if is_new:
            say(f"Its keys were made and are in {key_file(settings.common.home).absolute()}.")
        say(f"Log in once with {address}/login?code={keys.one_time_code()}")

    services = _services(settings, database)
    door = Entrance.of(keys, (server.console_host, *server.console_hosts), server.console_path)
    config = server_config(
        make_app(services, door),
        connections=_MOST_CONNECTIONS,
        patience=_PATIENCE,
        too_late=Refused(408, "The request did not arrive in time.").problem().model_dump_json().encode(),
        grace=5,
        proxy=server.console_proxy,
    )
    async with AsyncExitStack() as stack:
        notify = settings.secrets.notify_url
        told = None if notify is None else notify.get_secret_value()
        await stack.enter_async_context(
            upkeep(database, server, told, settings.common.home, partial(_learn, settings, database))
        )
        if server.console_trains:
            from trainer.console.host import taking_trainings

            words = None if server.training_command is None else shlex.split(server.training_command)
            await stack.enter_async_context(taking_trainings(database, settings, settings.lessons.game, words, stop))
        try:
            # While a training runs here, it is the one that hears the request to stop, and passes it on by ``stop``.
            await serve_until_asked(config, listening, started, stop=stop, stopping=services.hub.close)
        finally:
            stop.set()


async def _learn(settings: ConsoleCommand, database: Database) -> None:
    from trainer.run.advice import learn_from_outcomes

    await learn_from_outcomes(database, settings.model.model, settings.windows, settings.advice)


def _services(settings: ConsoleCommand, database: Database) -> Services:
    from data_bridge.worlds.load import load_world
    from trainer.console.live import Hub
    from trainer.console.log_check import LogCheck
    from trainer.console.services import Services
    from trainer.run.advice import AdvisorOfConsole
    from trainer.run.lesson_desk import LessonDesk
    from trainer.run.policy_desk import PolicyDesk

    async def check() -> CheckReport:
        from trainer.run.check_report import check_log

        return await check_log(database, settings.windows, settings.groups, settings.judge)

    def scorer() -> RewardScorer:
        from trainer.run.score import RewardScorer

        return RewardScorer(database, settings.judge, settings.secrets, settings.windows, settings.groups)

    advisor = AdvisorOfConsole(
        database,
        settings.model.model,
        settings.advice,
        settings.promotion,
        settings.secrets,
        load_world(settings.windows.world),
    )

    def embedder() -> Embedder:
        from trainer.inference.embedding import embedder_of

        return embedder_of(settings.embedding, settings.secrets)

    return Services(
        database=database,
        hub=Hub(database),
        home=settings.common.home,
        model=settings.model.model,
        command=settings,
        gate=settings.gate,
        addresses=settings.promotion,
        check=LogCheck(check),
        scorer=scorer,
        advisor=advisor,
        close_advisor=advisor.close,
        wanted_precision=settings.advice.advice_precision,
        lessons=LessonDesk(database, settings.lessons.game, settings.kept, embedder),
        policy=PolicyDesk(database, settings.policy, settings.limits, embedder, model=settings.model.model),
    )
