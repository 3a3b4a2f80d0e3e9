"""The words and sentence patterns of the news, and the tickers: split once and for ever into trained and unseen ones.

Agents play, and models are trained, with the trained ones only. The unseen ones are for questions: they share no
content word, no pattern and no ticker with the trained ones, so a model that answers them right has learnt to read and
not a list. They were fixed before anything was trained in this world; ``fingerprint_of_unseen`` is checked by a test.

Good and bad news of a family use the same patterns, so only the words say which way the news points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from trainer.world.grammar import FamilyName as FamilyName
from trainer.world.grammar import WordFamily as WordFamily

TICKERS: Mapping[FamilyName, tuple[str, ...]] = {
    "trained": ("$COIN", "$NOVA", "$ORCA", "$MINT", "$FERN", "$KITE", "$JADE", "$ECHO"),
    "unseen": ("$BOLT", "$LUNA", "$PINE", "$WREN", "$REEF", "$ATOM"),
}

_TRAINED = WordFamily(
    pointed=(
        "{ticker} {measure} {moved} by {number} million {when}",
        "{measure} at {ticker} {moved} {when}",
        "{ticker} {event}",
        "{ticker} {event} {when}",
        "{who} {viewed} {ticker} after {result}",
        "{ticker} {event} and {measure} {moved}",
    ),
    neutral=(
        "{ticker} will {announce} its {document} on {day}",
        "{ticker} {moves} its {office} to {city}",
        "{ticker} names {number} new {people}",
        "{who} tour the {office} of {ticker} on {day}",
    ),
    mixed=(
        "{ticker} {measure} {good_moved} by {number} million but it {bad_event}",
        "{ticker} {measure} {bad_moved} by {number} million but it {good_event}",
        "{ticker} {good_event} while {measure} {bad_moved}",
        "{ticker} {bad_event} while {measure} {good_moved}",
    ),
    plain={
        "measure": ("profit", "revenue", "sales", "demand", "exports", "income"),
        "when": ("last quarter", "this month", "over the year", "in its main market", "on Monday"),
        "who": ("analysts", "investors", "customers", "experts", "pension funds"),
        "announce": ("publish", "print", "present", "file"),
        "document": ("report", "calendar", "brochure", "agenda"),
        "day": ("Tuesday", "Thursday", "Friday", "Sunday"),
        "moves": ("moves", "relocates", "transfers"),
        "office": ("head office", "archive", "laboratory", "warehouse"),
        "city": ("Denver", "Oslo", "Lisbon", "Kyoto", "Perth"),
        "people": ("directors", "clerks", "engineers", "lawyers"),
    },
    up={
        "moved": ("jumped", "climbed", "soared", "grew", "rose", "improved"),
        "event": (
            "landed a huge contract",
            "beat every forecast",
            "received approval for its drug",
            "launched a very popular game",
            "raised its dividend",
            "cleared all of its debt",
            "found a rich oil field",
            "overtook its main competitor",
            "reported its best week ever",
            "gained millions of users",
        ),
        "viewed": ("praised", "recommended", "admired", "trusted"),
        "result": ("strong results", "a record year", "a successful launch", "great test scores", "good progress"),
    },
    down={
        "moved": ("dropped", "slumped", "sank", "slid", "fell", "worsened"),
        "event": (
            "lost a huge contract",
            "missed every forecast",
            "was denied approval for its drug",
            "withdrew a defective medicine",
            "cut its dividend",
            "defaulted on its debt",
            "was sued for fraud",
            "fell behind its main competitor",
            "reported its worst week ever",
            "was hacked and lost millions of users",
        ),
        "viewed": ("criticised", "abandoned", "feared", "blamed"),
        "result": ("weak results", "a terrible year", "a failed launch", "poor test scores", "serious problems"),
    },
)

_UNSEEN = WordFamily(
    pointed=(
        "{ticker}: {measure} {moved} by {number} percent",
        "After {result}, {measure} of {ticker} {moved}",
        "{who} {viewed} {ticker} for {result}",
        "{when}, {ticker} {event}",
        "{ticker} {event}, {who} said",
    ),
    neutral=(
        "{ticker} {shows} its {thing} {when}",
        "The {thing} of {ticker} is now {colour}",
        "{ticker} keeps {number} {things} in storage",
    ),
    mixed=(
        "{ticker}: {measure} {good_moved}, yet it {bad_event}",
        "{ticker}: {measure} {bad_moved}, yet it {good_event}",
        "{when}, {ticker} {good_event}, yet {measure} {bad_moved}",
        "{when}, {ticker} {bad_event}, yet {measure} {good_moved}",
    ),
    plain={
        "measure": ("earnings", "turnover", "bookings", "shipments", "subscriptions", "cash flow"),
        "when": ("today", "since spring", "within minutes", "before dawn", "yesterday"),
        "who": ("brokers", "dealers", "shareholders", "economists", "credit agencies"),
        "shows": ("exhibits", "photographs", "displays"),
        "thing": ("logo", "lobby", "uniform", "website"),
        "colour": ("blue", "grey", "green", "white"),
        "things": ("bicycles", "desks", "umbrellas", "chairs"),
    },
    up={
        "moved": ("rocketed", "rallied", "boomed", "flourished", "leapt", "strengthened"),
        "event": (
            "secured a lucrative deal",
            "smashed all expectations",
            "invented a miracle battery",
            "earned a top safety grade",
            "attracted a wealthy partner",
            "opened its thousandth store",
            "rewarded owners with a bonus",
            "crushed its rivals",
        ),
        "viewed": ("applauded", "hailed", "adored", "celebrated"),
        "result": ("brilliant figures", "a triumphant debut", "a breakthrough", "superb guidance", "rave reviews"),
    },
    down={
        "moved": ("plunged", "tumbled", "crashed", "crumbled", "shrank", "evaporated"),
        "event": (
            "declared bankruptcy",
            "disappointed with awful numbers",
            "admitted a deadly explosion",
            "was fined for bribery",
            "suffered a costly strike",
            "closed its flagship store",
            "hid toxic leaks from police",
            "sacked half of its staff",
        ),
        "viewed": ("slammed", "dumped", "ridiculed", "condemned"),
        "result": ("dismal figures", "a disastrous debut", "a scandal", "gloomy guidance", "angry complaints"),
    },
)

WORDS: Mapping[FamilyName, WordFamily] = {"trained": _TRAINED, "unseen": _UNSEEN}

EVENTS = (
    "rate cut this hour",
    "merger signed this hour",
    "satellite launches this hour",
    "peace pact this hour",
    "new chip arrives this hour",
    "port reopens this hour",
)
"""What the questions of prediction markets are about."""
LIKELY = ("Insiders are certain: {}", "All signs point to it: {}", "It is as good as done: {}")
UNLIKELY = ("Insiders rule it out: {}", "Talks have failed: {}", "All hope is gone: {}")


def fingerprint_of_unseen() -> str:
    """A hash of everything that may not be trained on."""
    content = msgspec.json.encode([TICKERS["unseen"], msgspec.to_builtins(WORDS["unseen"])], order="sorted")
    return hashlib.sha256(content).hexdigest()
