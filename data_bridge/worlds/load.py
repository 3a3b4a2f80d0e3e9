"""``--world NAME|FILE``: a world that ships, a TOML file, or a Python file with a class of one."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from functools import lru_cache
from pathlib import Path

from data_bridge.errors import ConfigurationError
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.own_class import guarded
from data_bridge.worlds.plain import parse_world
from data_bridge.worlds.world import World

FOLDER = Path(__file__).parent
NAMES = ("market", *sorted(file.stem for file in FOLDER.glob("*.toml")))
"""The worlds that ship."""


def load_world(name_or_file: str) -> World:
    """The world of this name or file. ConfigurationError says what is wrong with it."""
    if name_or_file == MARKET.name:
        return MARKET
    if name_or_file in NAMES:
        return _load(FOLDER / f"{name_or_file}.toml", name_or_file)
    path = Path(name_or_file)
    if path.suffix not in (".toml", ".py") or not path.is_file():
        raise ConfigurationError(
            f"--world: {name_or_file!r} is neither a world that ships ({', '.join(NAMES)}) nor a .toml or .py file."
        )
    return _load(path, name_or_file)


def _load(path: Path, where: str) -> World:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--world: {where} cannot be read: {error}.") from error
    return _parsed(path.resolve(), where, text)


@lru_cache(maxsize=16)
def _parsed(path: Path, where: str, text: str) -> World:
    source = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    if path.suffix == ".toml":
        return parse_world(text, f"--world {where}", source)
    return _from_python(path, where, source)


def _from_python(path: Path, where: str, source: str) -> World:
    """The one world that the file's own classes describe. It runs the file: it is the team's own code."""
    spec = importlib.util.spec_from_file_location(f"hindsight_world_{source}", path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"--world: {where} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        own = [
            kind
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, World) and kind.__module__ == module.__name__
        ]
        worlds = [guarded(kind, where)() for kind in own]
        _ = [world.version for world in worlds]  # attributes that no digest can be made of fail here
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"--world: {where} fails with {type(error).__name__}: {error}.") from error
    if len(worlds) != 1:
        raise ConfigurationError(f"--world: {where} must have one class derived from World, not {len(worlds)}.")
    worlds[0].source = source
    return worlds[0]
