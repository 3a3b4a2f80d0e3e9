"""The places, items and words of the quest world: split once and for ever into trained and unseen ones.

Agents play, and models are trained, with the trained ones only. The unseen ones are for questions: they share no
content word, no pattern, no place and no item with the trained ones. They were fixed before anything was trained in
this world; ``fingerprint_of_unseen`` is checked by a test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from trainer.world.grammar import FamilyName, WordFamily

PLACES: Mapping[FamilyName, tuple[str, ...]] = {
    "trained": ("Harbor", "Forge", "Castle", "Abbey", "Tower", "Village", "Temple", "Stable"),
    "unseen": ("Palace", "Chapel", "Garden", "Island", "Valley", "Museum"),
}
ITEMS: Mapping[FamilyName, tuple[str, ...]] = {
    "trained": ("lamp", "rope", "bread", "honey", "salt", "letter", "wool", "drum"),
    "unseen": ("candle", "cheese", "mirror", "sword", "basket", "flute"),
}

_TRAINED = WordFamily(
    pointed=(
        "{who} say the way to {place} is {state}",
        "The way to {place} is {state} {when}",
        "{event} on the way to {place}",
        "{event} near {place} {when}",
        "{who} report that {event} at {place}",
    ),
    neutral=(
        "The way to {place} is {number} miles long",
        "{who} paint a {thing} near {place}",
        "{place} gets {number} new {things} {when}",
        "{who} count the {things} of {place}",
    ),
    mixed=(
        "The way to {place} is {good_state} but {bad_event} there",
        "The way to {place} is {bad_state} but {good_event} there",
        "{who} say {good_event} near {place} while {bad_event} there",
        "{who} say {bad_event} near {place} while {good_event} there",
    ),
    plain={
        "who": ("scouts", "peasants", "pilgrims", "hunters", "sailors"),
        "when": ("this morning", "at noon", "this week", "since Monday", "after the rain"),
        "thing": ("fence", "signpost", "well", "gate"),
        "things": ("windows", "benches", "chickens", "barrels"),
    },
    up={
        "state": ("safe", "quiet", "open", "well patrolled", "peaceful", "easy"),
        "event": (
            "soldiers keep order",
            "children play happily",
            "the sun shines",
            "a strong new bridge stands",
            "merchants travel without trouble",
            "friendly guides help everybody",
            "the robbers were caught",
            "cosy inns welcome travellers",
        ),
    },
    down={
        "state": ("dangerous", "deadly", "blocked", "ruined", "cursed", "full of thieves"),
        "event": (
            "bandits attack people",
            "wolves chase travellers",
            "a terrible storm rages",
            "the old bridge collapsed",
            "merchants were robbed",
            "angry giants throw rocks",
            "a fire burns",
            "travellers are missing",
        ),
    },
)

_UNSEEN = WordFamily(
    pointed=(
        "Around {place}, {event}",
        "{when}, {event} beside {place}",
        "The trail towards {place} looks {state}, {who} write",
        "{place}: {event}",
    ),
    neutral=(
        "{place} has a {colour} {part}",
        "{who} measure the {part} of {place}",
        "Someone at {place} owns {number} cats",
    ),
    mixed=(
        "{place}: {good_event}, yet {bad_event}",
        "{place}: {bad_event}, yet {good_event}",
        "The trail towards {place} looks {good_state}, yet {bad_event}",
        "The trail towards {place} looks {bad_state}, yet {good_event}",
    ),
    plain={
        "who": ("couriers", "shepherds", "monks", "traders", "rangers"),
        "when": ("tonight", "yesterday", "before dawn", "again", "lately"),
        "colour": ("blue", "grey", "green", "white"),
        "part": ("roof", "door", "stair", "chimney"),
    },
    up={
        "state": ("secure", "calm", "pleasant", "harmless", "entirely clear", "comfortable"),
        "event": (
            "knights protect all visitors",
            "guests arrive in perfect health",
            "outlaws have surrendered",
            "the weather is lovely",
            "singers celebrate a holiday",
            "the enemy has left",
        ),
    },
    down={
        "state": ("risky", "flooded", "hostile", "treacherous", "lethal", "scary"),
        "event": (
            "pirates ambush wagons",
            "snakes bite strangers",
            "an avalanche buried two carts",
            "monsters eat horses",
            "murderers hide in ditches",
            "a war has begun",
        ),
    },
)

WORDS: Mapping[FamilyName, WordFamily] = {"trained": _TRAINED, "unseen": _UNSEEN}


def fingerprint_of_unseen() -> str:
    """A hash of everything that may not be trained on."""
    kept = [PLACES["unseen"], ITEMS["unseen"], msgspec.to_builtins(WORDS["unseen"])]
    return hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()
