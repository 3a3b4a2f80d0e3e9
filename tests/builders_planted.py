"""Query and lesson pairs that neither words nor meaning alone can all match, and junk around planted rules. Seeded.

Three sorts of pairs. *Named*: a number is all that tells the lesson from thousands in the same words, which an
embedding hardly sees. *Meant*: the query says the same with other words, which a search for words cannot see.
*Both*: some words and the meaning.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

SITUATIONS = (
    ("dockworkers walk off the job at the port", "harbour labour action keeps ships from unloading"),
    ("the central bank lifts interest rates", "borrowing costs raised by the monetary authority"),
    ("a drought ruins the wheat crop", "lack of rain destroys the grain harvest"),
    ("an airline grounds its fleet over faulty engines", "carrier's planes cannot fly, motors defective"),
    ("a drug fails its final trial", "medicine shows no benefit in last clinical study"),
    ("hackers steal customer data from a lender", "cyber attack on financial firm exposes client records"),
    ("a chip maker runs out of silicon wafers", "semiconductor producer short of raw material"),
    ("the founder resigns without notice", "company's creator quits out of the blue"),
    ("a hurricane closes oil platforms in the gulf", "storm shuts offshore crude production"),
    ("regulators block a merger of two grocers", "authorities forbid supermarkets from combining"),
    ("a toy maker recalls dolls with lead paint", "children's products withdrawn because of toxic coating"),
    ("auditors refuse to sign the accounts", "accountants will not approve the financial statements"),
    ("a short seller publishes a damning report", "activist betting on decline accuses firm in writing"),
    ("tourists return to the island resorts", "holiday visitors come back to the beaches"),
    ("a copper mine collapses", "cave-in at a metal pit"),
    ("the government cuts taxes on wages", "state lowers levies that employees pay"),
    ("a streaming service loses subscribers", "video platform sees viewers cancel"),
    ("electric cars pile up unsold", "inventory of battery vehicles keeps growing"),
    ("a rival launches a cheaper phone", "competitor brings out low-cost handset"),
    ("the currency falls to a record low", "money of the country weaker than ever"),
    ("a bank lends to bankrupt builders", "credit institution exposed to failed construction firms"),
    ("coffee beans freeze in Brazil", "frost hits plantations, espresso supply at risk"),
    ("a satellite launch explodes", "rocket blows up with its payload"),
    ("parliament votes out the prime minister", "leader toppled by lawmakers"),
    ("a brewer buys its largest distributor", "beer company acquires the firm that delivers for it"),
    ("container rates double in a month", "price of shipping freight surges"),
    ("a court orders a patent holder to pay", "judge rules against owner of invention, damages due"),
    ("steel tariffs are lifted", "import duties on metal removed"),
    ("a fire halts the battery plant", "blaze stops factory for cells"),
    ("snow blocks the rail lines to the coast", "winter weather cuts train traffic"),
    ("a pension fund dumps tobacco shares", "retirement investor sells cigarette stocks"),
    ("vaccination begins earlier than planned", "immunisation campaign starts ahead of time"),
    ("a game studio delays its sequel", "developer postpones follow-up title"),
    ("farmers protest against diesel prices", "growers demonstrate over fuel costs"),
    ("the insurer raises its dividend", "underwriter pays shareholders more"),
    ("a bridge collapse cuts off the city", "crossing falls, town isolated"),
    ("a cloud outage stops online shops", "server failure takes e-commerce down"),
    ("gold reserves are moved abroad in secret", "bullion shipped out quietly"),
    ("the harvest of grapes is the best in years", "vintners expect an outstanding season"),
    ("an actress sues the film company", "movie star takes studio to court"),
)
ADVICE = (
    ("sell at once", "should I get out immediately"),
    ("buy a small position", "is a modest long stake right"),
    ("wait for the second headline", "hold off until further news?"),
    ("halve the order", "cut my size by fifty percent?"),
    ("close before the hour ends", "exit ahead of the bell?"),
)
_NAMED = (
    ("Counterparty {code} withdraws late quotes; {advice}.", "quotes from {code} again"),
    ("Order type {code} fills badly near the close; {advice}.", "{code} on the order ticket"),
    ("Venue rule {code} doubles the fee after noon; {advice}.", "rule {code} applies today"),
)
_THINGS = (
    "lemon juice", "tractor", "harp", "opal", "violin", "marble", "bamboo", "kettle", "saddle", "candle", "anchor",
    "pillow", "ladder", "basket", "feather", "mirror", "needle", "ribbon", "lantern", "barrel", "carpet", "pepper",
    "walnut", "oyster", "sponge", "trumpet", "glove", "hammer", "bicycle", "compass", "spoon", "button", "curtain",
    "wagon", "helmet", "cradle", "magnet", "pencil", "rocket stove", "teapot",
)  # fmt: skip
_DEEDS = (
    "makers merge", "imports slow", "auctions are empty", "reviews turn sour", "workshops move", "exports double",
    "thieves return", "fashions change", "prices drift sideways", "festivals open", "licences lapse", "catalogues grow",
    "museums lend less", "guilds argue", "samples arrive late", "repairs take longer", "stalls multiply",
    "designs leak", "fairs are cancelled", "clubs split",
)  # fmt: skip
_PLACES = (
    "in the north", "along the river", "on the islands", "near the border", "in the old town", "at the lake",
    "in the valley", "on the plateau", "by the canal", "in the suburbs", "at the crossroads", "under the hill",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlantedPair:
    sort: str
    query: str
    lesson: str


def planted_pairs(number: int, seed: int) -> list[PlantedPair]:
    """Of ``number`` pairs 46 % are named, 38 % meant, the rest both. At most 500, as meant ones are not repeated."""
    chance = random.Random(seed)
    meant = [(situation, advice) for situation in SITUATIONS for advice in ADVICE]
    chance.shuffle(meant)
    named_number, meant_number = round(0.46 * number), min(round(0.38 * number), len(meant))
    found = []
    for place in range(named_number):
        frame, asked = _NAMED[place % len(_NAMED)]
        code = str(chance.randrange(10_000_000, 99_999_999))
        found.append(PlantedPair("named", asked.format(code=code), frame.format(code=code, advice=_advice(chance))))
    for (told, asked), (advice, question) in meant[:meant_number]:
        found.append(PlantedPair("meant", f"{asked}, {question}", f"When {told}, {advice}."))
    while len(found) < number:
        thing, year = chance.choice(_THINGS), chance.randrange(1000, 9999)
        lesson = f"When {thing} futures {year} open limit up, {_advice(chance)}."
        found.append(PlantedPair("both", f"{thing} futures {year} limit up at the open", lesson))
    chance.shuffle(found)
    return found


def _advice(chance: random.Random) -> str:
    return chance.choice(ADVICE)[0]


def fillers(number: int, seed: int) -> Iterator[str]:
    """Lessons about other things: half in the words of the named ones with other numbers, half about anything else."""
    chance = random.Random(seed)
    for place in range(number):
        if place % 2:
            frame, _ = chance.choice(_NAMED)
            yield frame.format(code=chance.randrange(10_000_000, 99_999_999), advice=_advice(chance))
        else:
            number_seen = chance.randrange(2, 400)
            yield (
                f"When {chance.choice(_THINGS)} {chance.choice(_DEEDS)} {chance.choice(_PLACES)} and {number_seen} "
                f"{chance.choice(_THINGS)} {chance.choice(_DEEDS)}, {_advice(chance)}."
            )


# Junk

_RECALLED = (
    "As remembered: {rule}", "I recall that {rule}", "Lesson: {rule} (remembered)", "{rule} Noted again.",
    "My notes say: {rule}", "{rule}",
)  # fmt: skip
_TURNED = (("at once", "immediately"), ("When", "Whenever"), ("small", "little"), ("the order", "every order"))


def planted_rules(number: int, seed: int) -> list[str]:
    """Rules about different situations. At most as many as there are situations."""
    chance = random.Random(seed)
    chosen = chance.sample(SITUATIONS, number)
    return [f"When {told}, {_advice(chance)}." for told, _ in chosen]


def junk(rules: list[str], number: int, seed: int) -> Iterator[tuple[int, str]]:
    """``number`` near duplicates and recycled copies of the rules, each with the place of its rule."""
    chance = random.Random(seed)
    for place in range(number):
        which = place % len(rules)
        text = chance.choice(_RECALLED).format(rule=rules[which])
        if chance.random() < 0.5:
            text = text.replace(*chance.choice(_TURNED))
        if chance.random() < 0.3:
            text = text.replace(", ", f" ({chance.randrange(100)} times), ")
        yield which, text
