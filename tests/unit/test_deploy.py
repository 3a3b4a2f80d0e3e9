"""The files under deploy/ call one command and hold no logic."""

import configparser
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMAND = "scripts/schedule_training.py --once"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys are case-sensitive
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser


def test_the_systemd_timer_wakes_a_service_that_calls_the_one_command() -> None:
    assert unit("hindsight-training.timer")["Timer"]["OnCalendar"] == "Sun 03:00:00 UTC"
    service = unit("hindsight-training.service")["Service"]
    assert service["ExecStart"].endswith(COMMAND)
    assert service["Type"] == "oneshot"


def test_the_kubernetes_cronjob_calls_the_one_command() -> None:
    job: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "cronjob.yaml").read_text())
    assert job["kind"] == "CronJob"
    assert job["spec"]["schedule"] == "0 3 * * 0"
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert " ".join(container["command"]).endswith(COMMAND)


def test_the_github_workflow_calls_the_one_command_and_names_only_known_variables() -> None:
    from trainer.cli.settings import all_variables

    workflow: dict[Any, Any] = yaml.safe_load((DEPLOY / "github" / "weekly-training.yml").read_text())
    steps = workflow["jobs"]["train"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make setup", f".venv/bin/python {COMMAND}"]
    assert set(steps[-1]["env"]) <= all_variables()


def test_the_command_that_the_files_call_exists() -> None:
    assert (ROOT / COMMAND.split()[0]).is_file()
