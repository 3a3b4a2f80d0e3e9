"""``/metrics`` as Prometheus reads it. By hand: the text format is a line a number, and no registry is kept here, as
every number comes from the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.console.live import Hub
from trainer.ledger.read.boards import SystemFacts
from trainer.ledger.read.now import NowFacts

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(now: NowFacts, system: SystemFacts, hub: Hub) -> str:
    """All metrics of one model and of the system. Pure."""
    lines: list[str] = []
    for name, meaning, value in _metrics(now, system, hub):
        if value is None:
            continue
        labels = "" if name.startswith("hindsight_system") else f'{{model="{_escaped(now.model)}"}}'
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name}{labels} {float(value):.10g}"]
    return "\n".join(lines) + "\n"


def _metrics(now: NowFacts, system: SystemFacts, hub: Hub) -> Iterator[tuple[str, str, float | None]]:
    run, latest = now.run, now.latest
    yield "hindsight_training", "1 while the model is being trained.", now.state == "training"
    yield "hindsight_step", "The newest step of the model.", latest.step if latest else None
    yield "hindsight_reward", "Mean reward of the newest step.", latest.reward if latest else None
    yield "hindsight_reward_std", "Spread of the reward of the newest step.", latest.reward_std if latest else None
    yield "hindsight_kl", "KL of the newest step.", latest.kl if latest else None
    yield "hindsight_entropy", "Entropy of the newest step.", latest.entropy if latest else None
    speed = latest.tokens_per_second if latest else None
    yield "hindsight_tokens_per_second", "Trained tokens per second in the newest step.", speed
    yield "hindsight_run_cost_usd", "What the judge cost in the newest run.", run.cost_usd if run else None
    yield "hindsight_run_judge_calls", "Calls of the judge in the newest run.", run.judge_calls if run else None
    yield "hindsight_run_share", "How much of the newest run is done, 0 to 1.", run.progress.share if run else None
    failed = None if run is None else run.state == "failed"
    yield "hindsight_run_failed", "1 if the newest run failed.", failed
    yield "hindsight_system_database_bytes", "Size of the database.", system.database_bytes
    yield "hindsight_system_hosts", "Consoles and schedulers that are alive.", sum(h.is_alive for h in system.hosts)
    yield "hindsight_system_leases", "Models that are held.", len(system.leases)
    yield "hindsight_system_commands_waiting", "Commands that no host has taken.", system.waiting_commands
    yield "hindsight_system_verdict_claims", "Questions to the judge in flight.", system.verdict_claims
    yield "hindsight_system_batches_open", "Batches that are prepared or submitted.", system.open_batches
    yield "hindsight_system_warnings", "Warnings on the page System.", len(system.warnings)
    yield "hindsight_system_streams", "Streams of events open at this console.", hub.streams


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
