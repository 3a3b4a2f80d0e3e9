"""Prompts of the simulated market with planted defects, and the measured table of prompt, mutation and score.

    python benchmarks/planted_prompts.py [--depth 5] [--questions 16] [--wordings 8] [--part 0/2] [--out FILE]

Eight wordings of the market's prompt, each as it should be (the task, limits and format, four worked examples) and with
five defects: no examples, bloated, no format, vague, compound task. From each prompt the operators of
``trainer.prompts.mutations`` reach others; every prompt within ``--depth`` mutations is a line of FILE with its score
at each question, asked of the embedded model once, and is not measured again: kill it and start the same command.
``--part 0/2`` measures every second prompt, for two processes.

The score of a question is what the offline judge would give in expectation: P(right reply) + 0.25 P(wrong reply), and 0
for whatever is no action, from the model's own probabilities of whole replies, so that no sampling blurs it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.scoring import ScoreRequest
from trainer.config.prompts import PromptLimits
from trainer.judge.outcome import FLOOR
from trainer.prompts.experience import MUTATIONS
from trainer.prompts.market import market_material, market_prompt, messages_of
from trainer.prompts.mutations import applicable, mutate
from trainer.prompts.structure import PromptExample, StructuredPrompt, parse
from trainer.world.questions import Question, questions

TABLE = Path(__file__).resolve().parent / "prompt_mutations.jsonl"
DEFECTS = ("none", "no examples", "bloated", "no format", "vague", "compound")
TASKS = (
    ("Trade the news.", "Do what seems best.", "the price of wheat"),
    ("Read the headline and trade the ticker.", "Help with this.", "the harbour"),
    ("Trade the ticker that the news is about.", "Look at it and respond.", "the old town"),
    ("Follow the news with one order.", "Handle the situation well.", "the mountain railway"),
    ("You are a trader. Trade on the headline.", "Be useful.", "the lighthouse"),
    ("Buy on good news and sell on bad news.", "Deal with what comes up.", "the orchard"),
    ("React to the news with an order.", "Give an answer that makes sense.", "the library"),
    ("Place the order that the headline calls for.", "Use your judgement.", "the river"),
)
"""For each wording: the task, a vague one, and what the bloated prompt goes on about."""
ORDERS = ((0, 1, 2, 3), (1, 0, 3, 2), (0, 1, 3, 2), (1, 0, 2, 3))
FREE_FORM = ("I would think about buying some of it.", "It may be time to let some of it go.")


def planted(wording: int, defect: str) -> StructuredPrompt:
    """One wording of the market's prompt with a defect."""
    task, vague, topic = TASKS[wording]
    own = market_prompt().examples
    examples = [own[place] for place in ORDERS[wording % len(ORDERS)]]
    if defect == "no examples":
        examples = []
    if defect == "vague":
        task, examples = vague, examples[:1]
    if defect == "no format":
        examples = [PromptExample(one.user, FREE_FORM["SELL" in one.assistant]) for one in examples]
    if defect == "compound":
        before = "Read the message, then summarise it in a sentence, then say who wrote it"
        task = f"{before}; finally {task[0].lower()}{task[1:]}"
    context = f"\n\n## Context\n{_bloat(topic)}" if defect == "bloated" else ""
    prompt = parse(f"{task}{context}\n").with_examples(examples)
    if defect == "no format":
        return prompt
    return mutate(prompt, "constraint_addition", market_material(), PromptLimits()).prompt


def _bloat(topic: str) -> str:
    return (
        f"Many letters reached us about {topic} this spring. Some praise {topic}, others complain that nobody looks "
        f"after it. A committee met twice to talk about {topic} and about the colour of its door. The minutes were "
        "read aloud, corrected and read aloud once more. Lunch was served at noon. Several members left early because "
        f"of the rain. It was agreed to write a longer report on {topic} and to meet again in autumn."
    )


def reachable(prompt: StructuredPrompt, depth: int) -> Iterator[tuple[StructuredPrompt, int]]:
    """Every prompt within ``depth`` mutations, with how many it took; the nearest first, each once."""
    material, limits = market_material(), PromptLimits()
    seen, front = {prompt.prompt_id}, [prompt]
    yield prompt, 0
    for distance in range(1, depth + 1):
        following: list[StructuredPrompt] = []
        for one in front:
            for name, applies in zip(MUTATIONS, applicable(one, material, limits), strict=True):
                child = mutate(one, name, material, limits).prompt if applies else one
                if child.prompt_id not in seen:
                    seen.add(child.prompt_id)
                    following.append(child)
                    yield child, distance
        front = following


def wanted(wordings: int, depth: int) -> list[StructuredPrompt]:
    """What the table holds, the nearest first, so that a table that is not complete yet is of use."""
    found: dict[str, tuple[int, StructuredPrompt]] = {}
    for wording in range(wordings):
        for defect in DEFECTS:
            for prompt, distance in reachable(planted(wording, defect), depth):
                known = found.get(prompt.prompt_id)
                if known is None or known[0] > distance:
                    found[prompt.prompt_id] = (distance, prompt)
    return [prompt for _, prompt in sorted(found.values(), key=lambda one: one[0])]


def asked(number: int) -> tuple[Question, ...]:
    """Questions with the words of training windows; a check of what was learnt asks others."""
    return questions(number, "trained", "trained", seed=17)


class Table:
    """The scores that were measured: a line for each prompt."""

    def __init__(self, path: Path = TABLE) -> None:
        self._path = path
        self.scores: dict[str, list[float]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # we were killed while we wrote it
                continue
            self.scores[row["prompt_id"]] = row["scores"]

    def of(self, prompt: StructuredPrompt) -> list[float] | None:
        return self.scores.get(prompt.prompt_id)

    def add(self, prompt: StructuredPrompt, scores: Sequence[float]) -> None:
        self.scores[prompt.prompt_id] = list(scores)
        with self._path.open("a") as file:
            row = {"prompt_id": prompt.prompt_id, "scores": [round(one, 5) for one in scores]}
            file.write(f"{json.dumps(row)}\n")


class Scorer:
    """The embedded model, one thread."""

    def __init__(self, home: Path) -> None:
        import torch

        from trainer.inference.base_model import EMBEDDED, model_directory
        from trainer.inference.policy import CpuPolicy

        torch.set_num_threads(1)
        self._policy = CpuPolicy(model_directory(EMBEDDED, home), rank=1, learning_rate=0.0, seed=0)

    def scores(self, prompt: StructuredPrompt, asked: Sequence[Question]) -> list[float]:
        """At each question; the prompt itself is read once."""
        beginning = messages_of(prompt)
        requests = [
            ScoreRequest((*beginning, one.messages[-1]), one.answer(way * one.direction))
            for one in asked
            for way in (1, -1)
        ]
        with self._policy.as_base():
            found = self._policy.score(requests)
        chances = [0.0 if one is None else float(np.exp(sum(one.logprobs))) for one in found]
        return [right + FLOOR * wrong for right, wrong in zip(chances[::2], chances[1::2], strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--wordings", type=int, default=len(TASKS))
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--out", type=Path, default=TABLE)
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    table, own = Table(options.out), wanted(options.wordings, options.depth)[part::parts]
    missing = [one for one in own if table.of(one) is None]
    print(f"{len(own)} prompts, {len(missing)} to be measured", flush=True)
    if not missing:
        return 0
    scorer, these = Scorer(options.home), asked(options.questions)
    for number, prompt in enumerate(missing, start=1):
        table.add(prompt, scorer.scores(prompt, these))
        if number % 20 == 0:
            print(f"{number} of {len(missing)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
