"""The files under deploy/ call one command and hold no logic."""

import configparser
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from trainer.config.commands import all_variables
from trainer.workers.ray_cluster import NETWORK

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMAND = "scripts/schedule_training.py --once"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)  # a key may stand twice, as a list
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys are case-sensitive
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser


def _cronjob() -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "cronjob.yaml").read_text())
    return job


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


def test_the_systemd_timer_wakes_a_service_that_calls_the_one_command() -> None:
    assert unit("hindsight-training.timer")["Timer"]["OnCalendar"] == "hourly"
    service = unit("hindsight-training.service")["Service"]
    assert service["ExecStart"].endswith(COMMAND)
    assert service["Type"] == "oneshot"
    assert service["KillMode"] == "mixed", "the training would hear the stop twice"
    assert service["SuccessExitStatus"].split() == ["3", "5"], "too little data and a refused promotion are no faults"


def test_there_is_a_service_for_the_server_that_comes_back_but_not_with_a_wrong_setting() -> None:
    serve = unit("hindsight-serve.service")
    assert serve["Service"]["ExecStart"].endswith("scripts/serve.py")
    assert serve["Service"]["Restart"] == "on-failure"
    assert serve["Service"]["RestartPreventExitStatus"] == "2"
    assert serve["Install"]["WantedBy"] == "multi-user.target"


def test_the_kubernetes_cronjob_calls_the_one_command() -> None:
    job = _cronjob()
    assert job["kind"] == "CronJob"
    assert job["spec"]["schedule"] == "0 * * * *"
    [container] = _pod(job)["containers"]
    assert " ".join(container["command"]).endswith(COMMAND)


def test_a_service_of_the_same_name_cannot_set_our_variables() -> None:
    """Kubernetes would add HINDSIGHT_PORT=tcp://... for a Service named hindsight."""
    assert _pod(_cronjob())["enableServiceLinks"] is False


def test_the_image_has_what_the_cronjob_runs_and_is_not_root() -> None:
    lines = [line.split() for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.strip()]
    copied = [source for word, *rest in lines if word == "COPY" for source in rest[:-1]]
    assert {"requirements.lock", "pyproject.toml", "scripts", "trainer", "data_bridge"} <= set(copied)
    assert {"requirements-torch.lock", "deploy/exit_green.py"} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)
    assert ["USER", "hindsight"] in lines
    [container] = _pod(_cronjob())["containers"]
    assert ["WORKDIR", container["workingDir"]] in lines
    assert container["volumeMounts"][0]["mountPath"] == f"{container['workingDir']}/.hindsight"


def test_kuberay_and_skypilot_call_the_one_command_with_workers() -> None:
    cluster, job = yaml.safe_load_all((DEPLOY / "kuberay" / "hindsight.yaml").read_text())
    assert (cluster["kind"], job["kind"]) == ("RayCluster", "Job")
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert " ".join(container["command"]).endswith(COMMAND)
    sky = yaml.safe_load((DEPLOY / "skypilot" / "hindsight.yaml").read_text())
    assert sky["run"].strip().endswith(COMMAND)
    ours = {one["name"] for one in container["env"] if one["name"].startswith("HINDSIGHT_")}
    ours |= {name for name in (*sky["envs"], *sky["secrets"]) if not name.startswith("RAY_")}
    assert {"HINDSIGHT_RAY_ADDRESS", "HINDSIGHT_WORKERS", "DATABASE_URL"} <= ours <= all_variables()


def test_a_cluster_has_the_network_limits_and_the_version_that_were_measured() -> None:
    cluster, _ = yaml.safe_load_all((DEPLOY / "kuberay" / "hindsight.yaml").read_text())
    wanted = f"ray=={cluster['spec']['rayVersion']}"
    assert wanted in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["scale"]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        given = {one["name"]: one.get("value") for one in container["env"]}
        assert given.items() >= {**NETWORK, "RAY_USAGE_STATS_ENABLED": "0"}.items()
        assert given["RAY_AUTH_MODE"] == "token", "others on the cluster's network can reach it"
    sky = yaml.safe_load((DEPLOY / "skypilot" / "hindsight.yaml").read_text())
    assert sky["envs"].items() >= {**NETWORK, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}.items()
    assert "RAY_AUTH_TOKEN" in sky["secrets"]
    assert wanted in sky["setup"]


def test_the_pods_of_a_cluster_are_valid_pods() -> None:
    cluster, job = yaml.safe_load_all((DEPLOY / "kuberay" / "hindsight.yaml").read_text())
    kubernetes_validate.validate(job, "1.31", strict=True)
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.31", strict=True)
        assert group["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_github_workflow_calls_the_one_command_and_names_only_known_variables() -> None:
    workflow: dict[Any, Any] = yaml.safe_load((DEPLOY / "github" / "weekly-training.yml").read_text())
    steps = workflow["jobs"]["train"]["steps"]
    green = f".venv/bin/python deploy/exit_green.py {COMMAND}"
    assert [step["run"] for step in steps if "run" in step] == ["make setup", green]
    assert set(steps[-1]["env"]) <= all_variables()


def test_the_command_that_the_files_call_exists() -> None:
    assert (ROOT / COMMAND.split()[0]).is_file()
