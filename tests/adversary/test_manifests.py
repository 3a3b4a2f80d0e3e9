"""What deploy/ hands to systemd, Kubernetes and GitHub: little to gain for who gets into it, and red only for faults.

Each judgement is another's tool: systemd-analyze, kubernetes-validate, zizmor. Beside it stands what 0.1.0 shipped,
which the tool must find wanting, so that a tool that says nothing is noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.builders import hours_before, insert_window
from tests.builders_roles import connected

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SERVICES = sorted(path.name for path in (DEPLOY / "systemd").glob("*.service"))
WORKFLOW = DEPLOY / "github" / "weekly-training.yml"

FIRST_SERVICE = """[Service]
Type=oneshot
User=hindsight
ExecStart=/opt/hindsight/.venv/bin/python scripts/schedule_training.py --once
"""
FIRST_WORKFLOW = """
name: weekly training
on: {schedule: [{cron: "0 3 * * *"}]}
jobs:
  train:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: make setup
"""


# systemd


def exposure(unit: Path) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_every_service_is_exposed_by_less_than_three_of_ten(tmp_path: Path) -> None:
    first = tmp_path / "first.service"
    first.write_text(FIRST_SERVICE)
    assert exposure(first) > 9
    assert SERVICES == ["hindsight-serve.service", "hindsight-training.service"]
    for name in SERVICES:
        assert exposure(DEPLOY / "systemd" / name) < 3.0, name


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_writes_only_its_state_and_no_other_user_reads_it(name: str) -> None:
    text = (DEPLOY / "systemd" / name).read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert (values["ProtectSystem"], values["UMask"], values["StateDirectoryMode"]) == ("strict", "0077", "0700")
    state = f"/var/lib/{values['StateDirectory']}"
    assert f"HINDSIGHT_HOME={state}" in values["Environment"].split()
    assert "ReadWritePaths" not in values
    script = values["ExecStart"].split()[1]
    assert (ROOT / script).is_file()


def test_the_server_is_not_handed_the_trainers_secrets() -> None:
    read = {
        name: re.findall(r"^EnvironmentFile=(.*)$", (DEPLOY / "systemd" / name).read_text(), re.MULTILINE)
        for name in SERVICES
    }
    assert all(read.values())
    assert not set(read["hindsight-serve.service"]) & set(read["hindsight-training.service"])


# Kubernetes


def cronjob() -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "cronjob.yaml").read_text())
    return job


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


def test_the_cronjob_is_one_to_kubernetes() -> None:
    job = cronjob()
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(job, version, strict=True)
    pod_of(job)["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFileSystem"):
        kubernetes_validate.validate(job, version, strict=True)


def test_the_pod_is_allowed_nothing() -> None:
    """What the `restricted` standard for pods asks for, and what it leaves open: the token and the file system."""
    pod = pod_of(cronjob())
    [container] = pod["containers"]
    allowed, own = pod["securityContext"], container["securityContext"]
    assert allowed["runAsNonRoot"] is True
    assert allowed["runAsUser"] > 0
    assert allowed["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {"memory", "ephemeral-storage"} <= container["resources"]["limits"].keys()
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()


def test_what_the_pod_writes_is_on_a_volume() -> None:
    [container] = pod_of(cronjob())["containers"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert {variables["HINDSIGHT_HOME"], variables["HOME"], "/tmp"} <= mounted


# GitHub


def findings(workflow: Path) -> int:
    """How much the strictest zizmor has to say, offline and without any configuration of ours."""
    zizmor = Path(sys.executable).with_name("zizmor")
    done = subprocess.run(
        [zizmor, "--offline", "--no-config", "--persona", "auditor", "--format", "plain", "--color", "never", workflow],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "completed" in done.stderr, done.stderr
    return len(re.findall(r"^(?:error|warning|info|help)\[", done.stdout, re.MULTILINE))


def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"  # where the file's first line says that it goes
    folder.mkdir(parents=True)
    (folder / "first.yml").write_text(FIRST_WORKFLOW)
    assert findings(folder / "first.yml") >= 3
    shutil.copy(WORKFLOW, folder)
    assert findings(folder / WORKFLOW.name) == 0


def test_the_workflow_may_read_the_code_and_no_tag_can_be_moved_under_it() -> None:
    workflow: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    [job] = workflow["jobs"].values()
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert all("${{" not in step.get("run", "") for step in job["steps"]), "an expression in a script is code of its"


# Green and red


def run_green(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run_python(str(DEPLOY / "exit_green.py"), *command, environment=environment)


def run_python(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("exits", "seen"), [(0, 0), (3, 0), (5, 0), (1, 1), (2, 2), (4, 4), (130, 130)])
def test_not_enough_data_and_a_refused_promotion_are_green_and_faults_are_red(
    tmp_path: Path, exits: int, seen: int
) -> None:
    script = tmp_path / "command.py"
    script.write_text("import sys, beside\nassert sys.argv[1:] == ['--once']\nsys.exit(beside.CODE)\n")
    (tmp_path / "beside.py").write_text(f"CODE = {exits}\n")
    done = run_green(str(script), "--once")
    assert done.returncode == seen, done.stderr


def test_a_command_that_dies_of_itself_is_red(tmp_path: Path) -> None:
    script = tmp_path / "command.py"
    script.write_text("raise RuntimeError('a fault')\n")
    assert run_green(str(script)).returncode == 1
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run_green(str(script)).returncode == -signal.SIGKILL


def test_what_stops_the_pod_is_heard_by_the_command_itself(tmp_path: Path) -> None:
    """Kubernetes signals the first process only: a shell there would let a training die in the middle of a step."""
    script = tmp_path / "command.py"
    script.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, str(DEPLOY / "exit_green.py"), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 130


async def test_the_real_command_on_an_empty_game_is_green_and_with_a_failing_training_red(
    database_url: str, tmp_path: Path
) -> None:
    [container] = pod_of(cronjob())["containers"]
    wrapper, script, *flags = container["command"][1:]
    assert wrapper == "deploy/exit_green.py"
    here = {"DATABASE_URL": database_url, "HINDSIGHT_HOME": str(tmp_path)}
    alone = run_python(script, *flags, "--job", "alone", environment=here)
    assert alone.returncode == 3, "an empty game has not enough data"
    done = run_green(script, *flags, environment=here)
    assert done.returncode == 0, done.stderr

    async with connected(database_url) as owner:
        for window_id in hours_before(number=4):
            await insert_window(owner, window_id, agents=3)
    filled = ("--job", "filled", "--until", "2026-11-02T12:30", "--command", "false")
    done = run_green(script, *flags, *filled, environment=here)
    assert done.returncode == 1, done.stderr
