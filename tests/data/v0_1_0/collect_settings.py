"""Run by 0.1.0's Python: prints what each of its commands made of each flag and each variable, as JSON.

``python collect_settings.py every_variable.env`` with 0.1.0's tree as PYTHONPATH; ``make`` calls it.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

COMMANDS = {
    "train_mmo": "TrainSettings",
    "evaluate": "EvaluateSettings",
    "promote": "PromoteSettings",
    "serve": "ServeSettings",
    "schedule_training": "ScheduleSettings",
    "lineage": "LineageSettings",
    "report": "ReportSettings",
    "check_windows": "CheckSettings",
    "judge_windows": "JudgeWindowsSettings",
    "certify_judge": "CertifySettings",
    "spawn_test_agents": "SpawnSettings",
    "run_migrations": "MigrationSettings",
    "traces": "TraceSettings",
}
OF_FLAGS = {
    "window": "2026-02-02T05:00",
    "reason": "it earns more",
    "depth": "3",
    "output": "page.html",
    "windows": "12",
    "start": "2026-02-02T00:00",
    "dirty": "0.1",
    "groups": "8",
    "step": "hindsight@step3",
    "candidate": "3",
    "incumbent": "2",
    "checkpoint": "3",
    "run": "20260202-120000-abcdef",
    "action": "export",
    "file": "week.jsonl",
}
"""Texts for what has no variable."""
FINGERPRINTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "another judge": {"judge": "llm", "judge_model": "gpt-5-mini", "rubric": "rubrics/mine.md"},
    "another market": {"world_seed": 8, "luck": 0.5, "agents": 5, "decisions": 2, "stage": "several"},
    "another model": {"model": "trader", "base_model": "Qwen/Qwen3-14B", "seed": 11, "foreign": "all"},
    "other groups": {"grouping": "matched", "max_group": 6, "match_ratio": 3.0, "dropout": 0.1, "min_spread": 0.05},
    "other rows": {"held_out_share": 0.2, "min_actions": 2, "purposes": "action,plan", "select": "max-variance 4"},
    "the game's log": {"simulate": "off", "windows_per_iteration": 12, "lookback": "14d", "max_steps": 5},
}


def main(env_file: str) -> None:
    source, config, cli = (import_module(f"trainer.{name}") for name in ("settings_source", "config", "cli.settings"))
    session = import_module("trainer.run.session")
    classes = {name: getattr(cli, kind, None) or getattr(config, kind) for name, kind in COMMANDS.items()}
    texts = {name: text or "" for name, text in dotenv_values(env_file, interpolate=False).items()}
    known = cli.all_variables()
    assert set(texts) == known, set(texts) ^ known
    prints = {
        name: {"values": values, "fingerprint": session.fingerprint(config.TrainSettings(**values))}
        for name, values in FINGERPRINTS.items()
    }
    commands = {name: _command(source, cls, texts) for name, cls in classes.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(told, sort_keys=True)}" for name, told in commands.items()]
    told = ['{"commands": {', ",\n".join(lines), '},\n"fingerprints":', json.dumps(prints, indent=1), "}\n"]
    sys.stdout.write("\n".join(told))


def _command(source: Any, cls: Any, texts: dict[str, str]) -> dict[str, Any]:
    """Its settings, and their values: by default, with every flag, with every switch off, with every variable."""

    def loaded(argv: list[str], environ: dict[str, str] | None = None) -> dict[str, Any]:
        named = {"prog": "", "description": "", "known_variables": frozenset(texts), "dotenv": Path("/nonexistent")}
        values: dict[str, Any] = source.public_values(source.load(cls, argv, environ=environ or {}, **named))
        return values

    flags, positionals, needed, off = list[str](), list[str](), list[str](), list[str]()
    settings = {}
    for name, field in cls.model_fields.items():
        variable, flag = source.variable_of(name, field), source.flag_of(name, field)
        has_flag = source._has_flag(field)
        settings[name] = {"flag": flag if has_flag else None, "variable": variable}
        if field.annotation is bool:
            flags.append(flag)
            off.append("--no-" + flag.removeprefix("--"))
        elif has_flag:
            text = texts[variable] if variable else OF_FLAGS[name]
            if flag.startswith("--"):
                flags += [flag, text]
            else:
                positionals.append(text)
                needed += [text] if field.is_required() else []
    every_flag = [*positionals, *flags]
    return {
        "settings": settings,
        "needed": needed,
        "defaults": loaded(needed),
        "flags": every_flag,
        "with_flags": loaded(every_flag),
        "off": off,
        "with_off": loaded([*needed, *off]),
        "with_variables": loaded(needed, texts),
    }


if __name__ == "__main__":
    main(sys.argv[1])
