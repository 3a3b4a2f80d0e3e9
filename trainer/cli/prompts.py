"""prompts: their versions, changes to them, the policy that learns which change helps, and its service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import EXIT_CODES, database_of, run_command
from trainer.cli.listening import listen, serve_until_asked
from trainer.cli.output import alive, say, say_json
from trainer.cli.tables import Column, show_table
from trainer.config.prompt_commands import PromptsCommand
from trainer.progress import counted

if TYPE_CHECKING:
    import socket

    from data_bridge.database import Database
    from trainer.ledger.prompts import PromptRow
    from trainer.prompts.material import PromptMaterial
    from trainer.prompts.structure import StructuredPrompt
    from trainer.run.policy_desk import PolicyDesk

_DESCRIPTION = """The agents' prompts: what they were changed to, which change helps, and which one agents are given.

A policy learns on training windows which of five mutations helps which prompt; gate compares a prompt with what the
agents use on evaluation windows, beside a random mutation, and releases it if it is better. serve offers the policy
over HTTP, with the console's key."""

_EPILOG = """examples:
  prompts.py add trader.txt --role trader          check and keep a prompt
  prompts.py list                                  prompts, the latest first
  prompts.py show p-0123456789abcdef               one of them, with where it comes from
  prompts.py diff p-0123456789abcdef               what changed since its parent, word by word
  prompts.py mutate p-0123456789abcdef             one change, which the policy selects
  prompts.py learn                                 episodes on training windows; killed, it goes on
  prompts.py compare                               the policy beside random, fixed, Thompson sampling and GEPA
  prompts.py gate p-0123456789abcdef               better than what agents use? then release it
  prompts.py release p-0123456789abcdef --force --reason WHY
  prompts.py serve                                 the policy on http://127.0.0.1:8765

"""
_NEEDS_TARGET = ("add", "show", "diff", "mutate", "gate", "release")


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        work, PromptsCommand, argv, prog="prompts.py", description=_DESCRIPTION, epilog=_EPILOG + EXIT_CODES
    )


async def work(settings: PromptsCommand) -> int:
    deed = settings.deed
    if deed.action in _NEEDS_TARGET and not (deed.target or "").strip():
        wanted = "a file" if deed.action == "add" else "the prompt's id"
        raise ConfigurationError(f"prompts.py {deed.action} needs {wanted} after it.")
    if deed.action == "release" and deed.force and not (deed.reason or "").strip():
        raise ConfigurationError("prompts.py release --force needs --reason: it is kept with the release.")
    if deed.action == "serve":
        return await _serve(settings)
    async with database_of(settings, migrate=True) as database:
        match deed.action:
            case "list":
                await _list(settings, database)
            case "add":
                await _add(settings, database)
            case "show":
                await _show(settings, database)
            case "diff":
                await _diff(settings, database)
            case "mutate":
                await _mutate(settings, database)
            case "learn" | "compare":
                await _learn(settings, database)
            case "gate":
                await _gate(settings, database)
            case "release":
                await _release(settings, database)
    return 0


def _plain(one: PromptRow) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(one)
    return found


async def _found(settings: PromptsCommand, database: Database, prompt_id: str | None = None) -> PromptRow:
    from trainer.ledger.prompts import find_prompt

    wanted = prompt_id or settings.deed.target or ""
    found = await find_prompt(database.pool, wanted, settings.deed.prompt_role or None)
    if found is None:
        raise ConfigurationError(f"There is no one prompt {wanted!r}: `prompts.py list` shows them.")
    return found


async def _list(settings: PromptsCommand, database: Database) -> None:
    from trainer.ledger.prompts import list_prompts

    found = await list_prompts(database.pool, role=settings.deed.prompt_role or None)
    if settings.output.json_output:
        say_json([_plain(one) for one in found])
        return
    if not found:
        say("No prompt was kept yet: `prompts.py add FILE` keeps one.")
        return
    show_table(
        [
            Column("id", [one.prompt_id for one in found], rank=1),
            Column("role", [one.role or "all" for one in found]),
            Column("made", [f"{one.made_at:%Y-%m-%d %H:%M}" for one in found], rank=3),
            Column("parent", [one.parent or "" for one in found], rank=4),
            Column("mutation", [one.mutation for one in found]),
            Column("gain", [_gain(one) for one in found], is_number=True),
            Column("prompt", [" ".join(one.text.split()) for one in found]),
        ],
        sys.stdout,
    )


def _gain(one: PromptRow) -> str:
    gain = one.evidence.get("gain")
    return f"{gain:+.3f}" if isinstance(gain, int | float) else ""


async def _add(settings: PromptsCommand, database: Database) -> None:
    from trainer.ledger.prompts import keep_prompt
    from trainer.prompts.structure import parse
    from trainer.run.prompt_release import new_prompt

    path = Path(settings.deed.target or "")
    try:
        text = await asyncio.to_thread(path.read_text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a prompt ({type(error).__name__}).") from error
    new = new_prompt(parse(text), settings.deed.prompt_role, settings.limits)
    is_new = await keep_prompt(database.pool, new)
    if settings.output.json_output:
        say_json({"prompt_id": new.prompt_id, "new": is_new, "variables": new.template.variables})
    else:
        say(f"{'Kept' if is_new else 'Known already:'} {new.prompt_id}{_of_role(new.role)}.")


def _of_role(role: str) -> str:
    return f" of the role {role!r}" if role else ""


async def _show(settings: PromptsCommand, database: Database) -> None:
    from trainer.ledger.prompts import versions_with

    one = await _found(settings, database)
    versions = await versions_with(database.pool, one.prompt_id)
    if settings.output.json_output:
        say_json(_plain(one) | {"versions": versions})
        return
    came = f"{one.mutation} of {one.parent}" if one.parent else "added"
    say(f"{one.prompt_id}{_of_role(one.role)}: {came} by {one.made_by}, {one.made_at:%Y-%m-%d %H:%M} UTC")
    say(*(f"  {name}: {value}" for name, value in one.evidence.items()))
    say(f"  in the versions: {', '.join(versions) or 'none'}", "", *one.text.rstrip("\n").split("\n"))


async def _diff(settings: PromptsCommand, database: Database) -> None:
    from trainer.ledger.read.word_diff import word_diff

    one = await _found(settings, database)
    other_id = settings.deed.against or one.parent
    if other_id is None:
        raise ConfigurationError(f"{one.prompt_id} has no parent: name the other prompt with --against.")
    other = await _found(settings, database, other_id)
    parts = word_diff(other.text, one.text)
    if settings.output.json_output:
        say_json({"from": other.prompt_id, "to": one.prompt_id, "parts": [asdict(part) for part in parts]})
        return
    marks = {"same": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}
    say(*"".join(marks[part.change].format(part.text) for part in parts).rstrip("\n").split("\n"))


async def _material(settings: PromptsCommand, database: Database) -> PromptMaterial:
    from trainer.run.prompt_material import material_for

    return await material_for(database, settings.model.model, settings.deed.reply)


def _desk(settings: PromptsCommand, database: Database) -> PolicyDesk:
    from trainer.inference.embedding import embedder_of
    from trainer.run.policy_desk import PolicyDesk

    return PolicyDesk(
        database,
        settings.policy,
        settings.limits,
        lambda: embedder_of(settings.embedding, settings.secrets),
        model=settings.model.model,
        reply=settings.deed.reply,
    )


async def _mutate(settings: PromptsCommand, database: Database) -> None:
    from trainer.judge.open import open_writing
    from trainer.prompts.writer import MutationWriter
    from trainer.run.prompt_release import keep_mutation

    one, mutation = await _found(settings, database), settings.deed.mutation
    if mutation is None:
        desk = _desk(settings, database)
        try:
            _, selected = await desk.select(await desk.state_of(one.text), deterministic=True, seed=None)
        finally:
            await desk.close()
        mutation = selected.name
    async with open_writing(settings.judge, settings.secrets, database, "prompts") as writing:
        writer = None if writing is None else MutationWriter(writing)
        how = (await _material(settings, database), settings.limits, writer)
        made, is_new = await keep_mutation(database, one, mutation, *how)
    if settings.output.json_output:
        say_json(_plain(made) | {"new": is_new, "selected": mutation})
    elif made.prompt_id == one.prompt_id:
        say(f"{mutation}: {one.prompt_id} stays as it is.")
    else:
        say(f"{mutation}: {made.prompt_id} from {one.prompt_id}.")


async def _starts(settings: PromptsCommand, database: Database) -> list[StructuredPrompt]:
    from trainer.ledger.prompts import list_prompts
    from trainer.prompts.structure import parse

    if settings.deed.target is not None:
        return [parse((await _found(settings, database)).text)]
    found = [
        one
        for one in await list_prompts(database.pool, limit=1000)
        if one.role == settings.deed.prompt_role and one.parent is None
    ]
    if not found:
        whose = _of_role(settings.deed.prompt_role) or " without a role"
        raise ConfigurationError(f"There is no prompt{whose} to begin with: `prompts.py add FILE` keeps one.")
    return [parse(one.text) for one in found]


async def _learn(settings: PromptsCommand, database: Database) -> None:
    from trainer.run.prompt_learning import compare_contestants, learn_policy

    starts, quiet = await _starts(settings, database), settings.output.json_output

    def progress(line: str) -> None:
        if not quiet:
            say(line, to=sys.stderr)

    how = {"starts": starts, "material": await _material(settings, database), "say": progress}
    if settings.deed.action == "learn":
        with alive("learning", quiet=quiet):
            done = await learn_policy(database, settings, **how)  # type: ignore[arg-type]
        if quiet:
            say_json(asdict(done))
        else:
            said = f"{done.decisions} decisions in {counted(done.episodes, 'new episode')}"
            say(f"Learnt from {said}; kept {counted(done.prompts, 'new prompt')}.")
        return
    with alive("comparing", quiet=quiet):
        found = await compare_contestants(database, settings, **how)  # type: ignore[arg-type]
    if quiet:
        say_json([asdict(one) for one in found])
        return
    show_table(
        [
            Column("contestant", [one.contestant for one in found]),
            Column("gain", [one.gain.told("+") for one in found]),
            Column(
                "policy minus it", ["" if one.policy_minus is None else one.policy_minus.told("+") for one in found]
            ),
            Column("scores asked for", [str(one.scores) for one in found], is_number=True),
        ],
        sys.stdout,
    )


async def _gate(settings: PromptsCommand, database: Database) -> None:
    from trainer.cli.evaluate import show_evaluation
    from trainer.config.derived import judged_by, keys_of
    from trainer.judge.open import refuse_unusable
    from trainer.run.prompt_release import gate_prompt

    refuse_unusable(judged_by(settings.judge, settings.evaluation), keys_of(settings.evaluation, settings.secrets))
    prompt, quiet = await _found(settings, database), settings.output.json_output

    def progress(line: str) -> None:
        if not quiet:
            say(line, to=sys.stderr)

    with alive("comparing with and without", quiet=quiet):
        done = await gate_prompt(database, settings, prompt, await _material(settings, database), say=progress)
    if quiet:
        ruling = {"ruling": done.decision.ruling, "reasons": done.decision.reasons}
        say_json({"prompt": prompt.prompt_id, **ruling, "evaluation": done.evaluation})
    else:
        show_evaluation(done.evaluation, done.decision)
        if done.promotion is not None:
            say(f"Agents are given {done.promotion.release.name} from now on.")
    if (refused := done.refusal()) is not None:
        raise refused


async def _release(settings: PromptsCommand, database: Database) -> None:
    from trainer.run.prompt_release import release_prompt

    deed, prompt = settings.deed, await _found(settings, database)
    done = await release_prompt(
        database,
        settings.common.home,
        prompt,
        settings.model.model,
        settings.gate,
        settings.promotion,
        reason=deed.reason,
        force=deed.force,
        canary=settings.promotion.canary,
    )
    if settings.output.json_output:
        say_json({"release": done.release.name, "state": done.state.value, "forced": done.forced})
    else:
        say(f"Agents are given {done.release.name} ({done.state.value}).")


# Serving


async def _serve(settings: PromptsCommand) -> int:
    from trainer.console.policy_bodies import DIMENSIONS

    if settings.policy.policy_input < DIMENSIONS:
        raise ConfigurationError(f"--policy-input must be at least {DIMENSIONS}: so many numbers clients send.")
    listening = listen(settings.server.prompt_host, settings.server.prompt_port)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(database_of(settings, migrate=True))
        await _serve_on(settings, database, listening)
    return 0


async def _serve_on(settings: PromptsCommand, database: Database, listening: socket.socket) -> None:
    from trainer.console.door import Entrance
    from trainer.console.keys import Keys, key_file
    from trainer.console.policy_app import PolicyServices, make_policy_app
    from trainer.console.problems import Refused
    from trainer.hosting.connections import server_config

    secrets = settings.secrets
    given = [None if one is None else one.get_secret_value() for one in (secrets.console_key, secrets.console_read_key)]
    keys, _ = Keys.open(settings.common.home, *given)
    door = Entrance.of(keys, (settings.server.prompt_host, *settings.server.prompt_hosts))
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    file = None if keys.given is not None else str(key_file(settings.common.home).absolute())

    def started() -> None:
        if settings.output.json_output:
            say_json({"event": "ready", "url": address, "keys": file})
        else:
            say(f"The prompt policy at {address} on {database.label}")
            say("Its key is HINDSIGHT_CONSOLE_KEY." if file is None else f"Its keys are in {file}.")

    config = server_config(
        make_policy_app(PolicyServices(database, _desk(settings, database)), door),
        connections=500,
        patience=30.0,
        too_late=Refused(408, "The request did not arrive in time.").problem().model_dump_json().encode(),
        grace=5,
    )
    await serve_until_asked(config, listening, started)


if __name__ == "__main__":
    sys.exit(main())
