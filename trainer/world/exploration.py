"""How much agents try things out: a lot in the first windows, little later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Exploring = Literal["temperature", "answers"]


@dataclass(frozen=True, slots=True)
class Exploration:
    """The share of decisions that explore, falling in a straight line from ``start`` to ``end``.

    A scripted agent explores by taking any of the offers. An agent with a language model explores by ``how``:

    - ``temperature``: it is asked at ``hot_temperature`` if its own is lower; the tokens are its own, with their
      log-probabilities.
    - ``answers``: it is not asked; one of the offers is taken and recorded under the name of the explorer, without
      tokens. Training treats such a call as another model's. Both directions stay alive that way, even in a model
      that has come to prefer one of them.
    """

    start: float = 0.3
    end: float = 0.05
    over_windows: int = 168
    how: Exploring = "temperature"
    hot_temperature: float = 1.0

    def epsilon(self, window_index: int) -> float:
        """The share of decisions that explore in the ``window_index``-th window played."""
        progress = min(1.0, window_index / max(1, self.over_windows))
        return self.start + (self.end - self.start) * progress


DEFAULT_EXPLORATION = Exploration()
NO_EXPLORATION = Exploration(start=0.0, end=0.0)
EXPLORER = "explorer"
"""The model name of a call whose answer was chosen by exploration and not by the agent's model."""
