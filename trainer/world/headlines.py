"""The texts of the news, and how a careful reader understands them.

Each headline names one ticker, or one question of a prediction market, and points clearly up or down.
"""

from __future__ import annotations

from trainer.world.chance import pick

_UP = (
    "{} profit beats every forecast",
    "{} wins a record order",
    "{} sales jump to a new high",
    "{} raises its outlook for the year",
    "{} product is a huge success",
    "Regulators approve the new {} service",
    "{} users double in a month",
    "{} pays off all of its debt",
    "Investors rush into {} after great results",
    "Experts praise the strong growth of {}",
    "{} breaks its own revenue record",
    "{} wins its court case",
    "Demand for {} explodes overnight",
    "{} gets its best rating ever",
    "Big funds add {} after a brilliant quarter",
    "{} announces a breakthrough",
)
_DOWN = (
    "{} profit misses every forecast",
    "{} loses its largest customer",
    "{} sales slump to a new low",
    "{} cuts its outlook for the year",
    "{} product is a total failure",
    "Regulators ban the new {} service",
    "{} users flee after a hack",
    "{} cannot pay its debt",
    "Investors flee {} after terrible results",
    "Experts warn of a crash of {}",
    "{} reports its worst loss ever",
    "{} is sued for fraud",
    "Demand for {} collapses overnight",
    "{} gets its worst rating ever",
    "Big funds dump {} after a disastrous quarter",
    "{} admits a dangerous defect",
)
_LIKELY = ("Insiders are certain: {}", "All signs point to it: {}", "It is as good as done: {}")
_UNLIKELY = ("Insiders rule it out: {}", "Talks have failed: {}", "All hope is gone: {}")

EVENTS = (
    "rate cut this hour",
    "merger signed this hour",
    "strike ends this hour",
    "rocket launches this hour",
    "trade deal this hour",
    "new chip ships this hour",
)

_DIRECTIONS = dict.fromkeys(_UP + _LIKELY, +1) | dict.fromkeys(_DOWN + _UNLIKELY, -1)


def headline(subject: str, direction: int, *key: object) -> str:
    """A headline on the ticker ``subject`` (``$COIN``) that points up (+1) or down (-1)."""
    return pick(_UP if direction > 0 else _DOWN, *key).format(subject)


def hint(event: str, direction: int, *key: object) -> str:
    """A headline on whether ``event`` will happen."""
    return pick(_LIKELY if direction > 0 else _UNLIKELY, *key).format(event)


def direction_of(text: str, subject: str) -> int:
    """What ``text`` says about ``subject`` to a reader who understands it: up (+1), down (-1) or nothing (0)."""
    return _DIRECTIONS.get(text.replace(subject, "{}"), 0) if subject in text else 0
