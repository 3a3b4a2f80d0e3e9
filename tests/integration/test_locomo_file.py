"""The benchmark's reader of LoCoMo, on a small file of the same format: what is counted, and what is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from data_bridge.database import Database
from tests.builders_lessons import WordEmbedder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from finding_lessons import locomo, questions_of, turns_of

FERRY, KITE, THANKS, LOST = (
    "Our ferry to Elba was late by six hours",
    "I built a kite for my niece",
    "Thanks, that means a lot",
    "The museum lost my umbrella",
)
FILLERS = [f"Word{number} and nothing else about thing{number}" for number in range(30)]


def sample() -> dict[str, object]:
    """As locomo10.json has it: sessions beside their dates, photos, several ids in one text, questions without any."""
    first = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": FERRY},
        {"speaker": "Ben", "dia_id": "D1:2", "text": THANKS},
        {"speaker": "Ann", "dia_id": "D1:3", "text": KITE, "img_url": ["x"], "blip_caption": "a photo of a red dragon"},
    ]
    second = [
        {"speaker": "Ben", "dia_id": "D2:1", "text": THANKS},
        {"speaker": "Ben", "dia_id": "D2:2", "text": LOST},
        *({"speaker": "Ann", "dia_id": f"D2:{number}", "text": text} for number, text in enumerate(FILLERS, 3)),
    ]
    conversation = {
        "speaker_a": "Ann",
        "speaker_b": "Ben",
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": first,
        "session_2_date_time": "2:10 pm on 9 May, 2023",
        "session_2": second,
    }
    every_filler = ", ".join(f"D2:{number}" for number in range(3, 3 + len(FILLERS)))
    questions = [
        {"question": "How late was the ferry to Elba?", "answer": "6 hours", "evidence": ["D1:1"], "category": 1},
        {"question": "Who has a red dragon?", "answer": "Ann", "evidence": ["D1:3"], "category": 4},
        {"question": "Who said thanks, means a lot?", "answer": "Ben", "evidence": ["D1:2"], "category": 4},
        {"question": "What happened with the umbrella?", "evidence": [f"D2:2; {every_filler}"], "category": 5},
        {"question": "Of what does no word occur?", "answer": "x", "evidence": ["D2:30"], "category": 2},
        {"question": "Is there no evidence?", "answer": "x", "evidence": [], "category": 3},
        {"question": "Is it a turn that is not there?", "answer": "x", "evidence": ["D9:9", "D"], "category": 3},
    ]
    return {"sample_id": "conv-1", "conversation": conversation, "qa": questions, "event_summary": {}}


def test_turns_and_evidence_are_read_as_the_file_has_them() -> None:
    turns = turns_of(sample())
    assert len(turns) == 5 + len(FILLERS)
    assert turns["D1:3"] == f"Ann: {KITE} [photo: a photo of a red dragon]"
    assert [evidence for _, evidence in questions_of(sample(), turns)] == [
        {"D1:1"},
        {"D1:3"},
        {"D1:2"},
        {f"D2:{number}" for number in range(2, 3 + len(FILLERS))},
        {"D2:30"},
    ]


async def test_a_question_counts_if_its_evidence_is_among_the_first_ten(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([sample(), sample()]))
    some, everything, asked = await locomo(file, WordEmbedder(), database)
    assert asked == 10, "five of each conversation; those without a turn to find are not counted"
    assert some == 0.8, "the same words twice are one lesson of both turns; a filler is not found by words it lacks"
    assert everything == 0.6, "what has more evidence than ten turns cannot have all of it found"
