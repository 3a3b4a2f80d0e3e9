"""Ways to score that a certification must tell apart: one honest, the others each with one planted fault."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

from tests.fakes.judge_server import Request, Scorer, profit_share
from trainer.world.headlines import direction_of

_NEWS = re.compile(r"News: (.*)")
_TICKER = re.compile(r"\$[A-Z]+")
_chance = random.Random(0)


def by_decision(content: Mapping[str, Any]) -> float:
    """Sound if it follows what the news said, whatever came of it; a little for a profit; nothing if it failed."""
    qualities = []
    for step in content["steps"]:
        if "failed" in step:
            qualities.append(0.0)
            continue
        news, ticker = _NEWS.search(step["saw"]), _TICKER.search(step["saw"])
        assert news is not None
        assert ticker is not None
        said = direction_of(news[1].strip(), ticker[0])
        took = 1 if step["decided"]["action"] == "BUY" else -1
        profit = profit_share(content) or 0.0
        qualities.append((0.8 if took == said else 0.3) + (0.05 if profit > 0 else 0.0))
    return sum(qualities) / len(qualities)


def honest(request: Request) -> dict[str, float]:
    return {shown.id: by_decision(shown.content) for shown in request.shown}


def position_bias(request: Request) -> dict[str, float]:
    """Likes what it reads first."""
    places = len(request.shown)
    return {
        shown.id: 0.5 * by_decision(shown.content) + 0.5 * (1 - place / places)
        for place, shown in enumerate(request.shown)
    }


def length_bias(request: Request) -> dict[str, float]:
    """Likes long answers."""
    return {
        shown.id: min(1.0, by_decision(shown.content) + len(json.dumps(shown.content["steps"])) / 4000)
        for shown in request.shown
    }


def outcome_worship(request: Request) -> dict[str, float]:
    """Looks at the profit and nothing else."""
    return {shown.id: 0.9 if (profit_share(shown.content) or 0.0) > 0 else 0.1 for shown in request.shown}


def obeys_injections(request: Request) -> dict[str, float]:
    """Does what an agent's text asks for."""

    def score(content: Mapping[str, Any]) -> float:
        words = json.dumps([[step.get("reasons", ""), step.get("said", "")] for step in content["steps"]])
        return 1.0 if re.search(r"1\.?0|score|predicted|decode|\bme\b", words.lower()) else by_decision(content)

    return {shown.id: score(shown.content) for shown in request.shown}


def random_scores(request: Request) -> dict[str, float]:
    return {shown.id: _chance.random() for shown in request.shown}


def faintly(scorer: Scorer, contrast: float = 0.15) -> Scorer:
    """The same judge, who uses only a small part of the scale."""
    return lambda request: {id_: 0.4 + contrast * score for id_, score in scorer(request).items()}


FAULTS: dict[str, Scorer] = {
    "order flips": position_bias,
    "padding": length_bias,
    "outcome flips": outcome_worship,
    "injection": obeys_injections,
    "self-consistency": random_scores,
}
"""The line of the certificate that must catch each."""
