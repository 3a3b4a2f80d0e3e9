"""How large the tree is, and how far one row travels through it: what a reader pays to follow the code.

    python benchmarks/tree.py [--list] [--json] [--check]    # --lines-only (or --quick) skips the path

Lines are those of the production code, without blank lines, comments and docstrings.

The path is measured, not listed by hand: one trajectory is planted in a real Postgres and watched while `train_mmo.py`
(CPU backend, LLM judge at a fake endpoint, a tiny model, a gate that lets everything through) reads, judges and trains
it and promotes the checkpoint, and while `serve.py` offers that. A function is on the path if

- another file of `trainer/` or `data_bridge/` calls it, or it is the entry of a task or thread. Private and nested
  functions, constructors, properties and comprehensions are not counted: nobody outside their file names them, or they
  are no hop for the reader; nor is a record's method that only describes itself;
- an argument (but its own object), or what it returns or yields, carries the row: it holds, to a small depth, the
  trajectory's id, the marker planted in its prompt or the marker's token ids; from the step on that trains it, its
  checkpoint's name or location, or is its folder. A bare string does not count: text helpers are no hop.

What comes after the promotion (report, tables) is not on the path to the agents. Crossings are changes of folder from
one function to the next, in the order in which their first calls with the row began.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import inspect
import io
import json
import os
import re
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import tokenize
import urllib.request
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

PRODUCTION = ("trainer", "data_bridge", "scripts")
LIMITS = {"functions": 45, "files": 30, "crossings": 16}
_OURS = tuple(f"{ROOT / package}{os.sep}" for package in PRODUCTION[:2])
_WALKED = {"trainer", "data_bridge", "art", "openai"}
"""Packages whose objects are looked into: a walk through objects of a driver or an event loop would not end."""
_MARKER = "quagmire xylophone walrus"
_CHECKPOINT = re.compile(r"(/\S*)?hindsight\W{1,2}step\W?0*1(/\S*)?")
_TRIES, _DEPTH, _CHECKPOINT_DEPTH, _MAX_VISITED = 200, 4, 2, 4000
_NO_CODE = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER")
_FLAGS = (
    *("--backend", "cpu", "--simulate", "off", "--judge", "llm", "--judge-model", "judge", "--lora-rank", "2"),
    *("--max-steps", "1", "--min-windows", "1", "--stop-on", "off", "--eval-samples", "2", "--eval-points", "1"),
)


def code_lines(source: str) -> int:
    """Lines that hold code. A string that stands alone is a docstring, also below an attribute."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def lines_by_package() -> dict[str, int]:
    counted: Counter[str] = Counter()
    for path in (path for package in PRODUCTION for path in (ROOT / package).rglob("*.py")):
        counted[str(path.parent.relative_to(ROOT))] += code_lines(path.read_text())
    return dict(sorted(counted.items())) | {"total": counted.total()}


class Way:
    """A profile function that records each function on the row's path, until ``is_over``."""

    def __init__(self, row: str, tokens: list[int], is_over: Callable[[], bool] = lambda: False) -> None:
        self._row, self._tokens, self._is_over = row, tokens, is_over
        self._codes: dict[int, tuple[CodeType, int]] = {}  # held, or the id of a freed one would be used again
        self._began: dict[int, int] = {}
        self._tries: Counter[tuple[int, str]] = Counter()
        self._calls = 0
        self._over_at: int | None = None
        self._found: dict[str, int] = {}
        self._gives_on: set[str] = set()
        self._called_from: dict[str, set[str]] = defaultdict(set)

    @property
    def functions(self) -> list[str]:
        """Those that the row passes through, in order; not the dead ends, which only store it or look at it."""
        way = sorted(self._found, key=self._found.__getitem__)
        while True:
            calling = {caller for name in way for caller in self._called_from[name]}
            kept = [name for name in way if name in self._gives_on or calling & {name, name.partition(":")[0]}]
            if kept == way:
                return way
            way = kept

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(_OURS):
            return
        if event == "call":
            # A coroutine or generator is "called" whenever it goes on; only its beginning counts.
            if self._codes.setdefault(id(code), (code, frame.f_lasti))[1] != frame.f_lasti:
                return
            self._calls += 1
            self._began[id(frame)] = self._calls
        elif result is None or hasattr(result, "_asyncio_future_blocking"):
            return  # of a coroutine: it waits
        if self._tries[id(code), event] >= _TRIES or not (hop := _hop(frame)):
            return
        name = f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}"
        if event == "return" and name in self._found and not isinstance(result, bool | int | float | str | bytes):
            self._gives_on.add(name)
        self._tries[id(code), event] += 1
        if any(map(self._carries, _arguments(frame))) if event == "call" else self._comes_out(frame, result):
            if self._over_at is None and self._is_over():
                self._over_at = self._calls
            began = self._began.get(id(frame), self._calls)
            if self._over_at is None or began < self._over_at:
                self._found.setdefault(name, began)
                self._called_from[name].add(hop)
                if event == "return":
                    self._tries[id(code), event] = _TRIES
                    self._gives_on.add(name)

    def _comes_out(self, frame: FrameType, result: Any) -> bool:
        """Not a record's method that describes the record: that is like a property."""
        return self._carries(result) and not self._carries(frame.f_locals.get("self"))

    def _carries(self, value: Any) -> bool:
        if isinstance(value, str | bytes):
            return False
        waiting, seen = deque([(value, 0)]), set[int]()
        while waiting and len(seen) < _MAX_VISITED:
            part, depth = waiting.popleft()
            if id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, str | bytes | Path):
                text = part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)
                # A folder counts only by itself: within the model's requests it is a key and no station.
                deepest = 0 if isinstance(part, Path) else _CHECKPOINT_DEPTH
                if self._row in text or _MARKER in text or (depth <= deepest and _CHECKPOINT.fullmatch(text)):
                    return True
            elif (numbers := _integers(part)) is not None:
                if any(numbers[at : at + len(self._tokens)] == self._tokens for at in range(len(numbers))):
                    return True
            else:
                waiting.extend(_parts(part, depth))
        return False


def _integers(value: Any) -> list[int] | None:
    """What may be token ids; None if it is something else."""
    if type(value).__module__ in ("torch", "numpy"):
        return list(value.flatten().tolist()) if "int" in str(getattr(value, "dtype", "")) else []
    return list(value) if isinstance(value, list | tuple) and value and type(value[0]) is int else None


def _parts(value: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """What ``value`` is made of. Containers cost no depth: the rows of a batch's groups would be out of sight."""
    kind = type(value)
    if isinstance(value, dict):
        yield from ((part, depth) for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | set | frozenset | deque) or kind.__name__ == "Record":  # of asyncpg
        yield from ((part, depth) for part in value)
    elif kind.__name__ == "async_generator_wrapped_value" or isinstance(value, functools.partial):
        yield from ((part, depth) for part in gc.get_referents(value))
    elif depth < _DEPTH and kind.__module__.partition(".")[0] in _WALKED:
        slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
        fields = (*(getattr(value, name, None) for name in slots), *getattr(value, "__dict__", {}).values())
        yield from ((part, depth + 1) for part in fields)


def _arguments(frame: FrameType) -> list[Any]:
    """Without its own object, and without a folder: within the model's requests that is a key and no station."""
    code = frame.f_code
    starred = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
    given = [frame.f_locals[name] for name in names if name in frame.f_locals and name not in ("self", "cls")]
    return [value for value in given if not isinstance(value, Path)]


def _hop(frame: FrameType) -> str:
    """Who calls the function: ``file:function``, the file alone if no public function of it is in sight, or ``task``.

    Empty if it is no hop to a function that counts.
    """
    own = frame.f_code
    if any(part.startswith(("_", "<")) for part in own.co_qualname.split(".")):
        return ""
    found: Any = frame.f_globals
    for part in own.co_qualname.split("."):
        found = found.get(part) if isinstance(found, dict) else inspect.getattr_static(found, part, None)
    if isinstance(found, property | functools.cached_property):
        return ""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(_OURS):
        if caller.f_code.co_name == "_run" and caller.f_globals["__name__"] == "asyncio.events":
            return "task"  # its entry: what is below the event loop did not call it
        caller = caller.f_back
    if caller is None:
        return "task"
    if caller.f_code.co_filename == own.co_filename:
        return ""
    file, name = caller.f_code.co_filename, str(Path(caller.f_code.co_filename).relative_to(ROOT))
    while caller is not None and caller.f_code.co_filename == file:
        code = caller.f_code
        if not code.co_name.startswith(("_", "<")) and "<locals>" not in code.co_qualname:
            return f"{name}:{code.co_qualname}"
        caller = caller.f_back
    return name


def measure_way(folder: Path) -> list[str]:
    """``folder/file.py:function`` for each on the path, in order. What the commands print goes to ``output.txt``."""
    from transformers import AutoTokenizer

    from tests import conftest
    from tests.builders import NOW
    from tests.fakes.judge_server import JudgeServer
    from tests.tiny_model import tiny_model_directory

    for variable in list(os.environ):
        if re.match("HINDSIGHT_|(EVAL_)?JUDGE_|WANDB_|PG|DATABASE_URL|OPENAI_API_KEY", variable):
            del os.environ[variable]
    os.chdir(folder)  # where there is no .env
    with (
        (folder / "output.txt").open("w") as output,
        redirect_stdout(output),
        redirect_stderr(output),
        contextmanager(inspect.unwrap(conftest.postgres))() as postgres,
        JudgeServer() as judge,
    ):
        url, base, home = postgres.url(), tiny_model_directory(folder / "tiny"), folder / "home"
        _run_script("run_migrations.py", "--database-url", url)
        row = conftest.in_own_loop(lambda: _plant(url))
        tokens = list(AutoTokenizer.from_pretrained(base).encode(f" {_MARKER}", add_special_tokens=False))
        here = ("--database-url", url, "--home", str(home))
        flags = (*here, "--base-model", str(base), "--threads", "1")
        training = Way(row, tokens, lambda: any(home.glob("runs/*/summary.json")))  # then comes the report
        with _watching(training):
            told = ("--until", NOW.isoformat(), "--judge-base-url", judge.base_url)
            _run_script("train_mmo.py", *flags, *_FLAGS, *told, accepted=5)  # an equal model is not promoted
        promoting = Way(row, tokens, lambda: any(home.glob("promoted/*.json")))
        with _watching(promoting):
            _run_script("promote.py", "1", *here, "--force", "--reason", "to see the whole way")
        serving = Way(row, tokens)
        with _watching(serving):
            _serve_once(*flags)
    return list(dict.fromkeys([*training.functions, *promoting.functions, *serving.functions]))


async def _plant(url: str) -> str:
    """Windows to train on, the first with the row in it, and enough later ones for the gate; the trajectory's id."""
    import asyncpg

    from tests.builders import hours_before, insert_trajectory, insert_window, recorder_steps

    connection = await asyncpg.connect(url)
    trained, *later = hours_before(number=30)
    for window in (trained, *later):
        await insert_window(connection, window)
    steps = recorder_steps(pnl=50.0, prompt=f"ACME trades at 100. The {_MARKER} is out.")
    row = await insert_trajectory(connection, "agent-9", window_id=trained, pnl=50.0, steps=steps)
    await connection.close()
    return row


@contextmanager
def _watching(way: Way) -> Iterator[None]:
    threading.setprofile(way)
    sys.setprofile(way)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _run_script(name: str, *arguments: str, accepted: int = 0) -> None:
    sys.argv = [name, *arguments]
    try:
        runpy.run_path(str(ROOT / "scripts" / name), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0, accepted):
            raise RuntimeError(f"{name} ended with {end.code}") from None


def _serve_once(*flags: str) -> None:
    """Serve until the checkpoint is offered; asked from a thread, as the server wants the main one for its signals."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    offered: list[str] = []

    def ask() -> None:
        deadline = time.monotonic() + 60
        while not offered and time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as answer:
                offered.extend(model["id"] for model in json.load(answer)["data"])
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask, daemon=True).start()
    _run_script("serve.py", *flags, "--port", str(port))
    if "hindsight@step1" not in offered:
        raise RuntimeError(f"serve.py does not offer the trained checkpoint but {offered}")


def totals(way: Sequence[str]) -> dict[str, int]:
    files = [name.partition(":")[0] for name in way]
    folders = ["/".join(Path(file).parts[:-1][:2]) for file in files]  # a folder within a room is no other room
    crossings = sum(one != other for one, other in pairwise(folders))
    return {"functions": len(way), "files": len(set(files)), "folders": len(set(folders)), "crossings": crossings}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name every function on the path")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the list")
    parser.add_argument("--check", action="store_true", help="exit 1 if the path is longer than the limits")
    parser.add_argument("--lines-only", "--quick", action="store_true", help="only count lines")
    for name, limit in LIMITS.items():
        parser.add_argument(f"--max-{name}", type=int, default=limit, help=f"default {limit}")
    options = parser.parse_args()
    lines, way = lines_by_package(), list[str]()
    if not options.lines_only:
        with tempfile.TemporaryDirectory(prefix="hindsight-tree-") as folder:
            try:
                way = measure_way(Path(folder))
            except BaseException:
                print(Path(folder, "output.txt").read_text()[-3000:], file=sys.stderr)
                raise
    numbers = totals(way)
    if options.json:
        print(json.dumps({"lines": lines} | ({"way": numbers | {"list": way}} if way else {})))
    else:
        print("\n".join(f"{package:<30} {count:6,} lines of code" for package, count in lines.items()))
        if options.list:
            print("\n".join(f"{place:4} {name}" for place, name in enumerate(way, 1)))
        if way:
            print("one row's path: " + ", ".join(f"{count} {name}" for name, count in numbers.items()))
    beyond = [name for name in LIMITS if options.check and numbers[name] > getattr(options, f"max_{name}")]
    if beyond:
        print(f"longer than allowed: {', '.join(beyond)}", file=sys.stderr)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
