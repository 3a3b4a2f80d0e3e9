"""What a judge is examined on: hours that were designed for it, in which soundness is known, or the user's own.

A simulated *story* is a headline on a ticker. It is shown twice, as it is and mirrored: opposite news, opposite orders,
opposite prices, and everything else equal. In each hour half of the agents follow the news (sound) and half act against
it (careless). In exactly half of the stories the price goes against the news, so exactly half of the sound decisions
lose and half of the careless ones win: by design, not by chance. Balances are drawn anew for every hour, the same ones
for the sound and for the careless. So neither profit, nor wealth, nor BUY tells a sound decision from a careless one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from data_bridge.errors import ConfigurationError
from data_bridge.models import AgentTrajectory, EnvironmentState, LLMCall, Step
from data_bridge.window_ids import end_of, start_of, windows_from
from trainer.certify.probes import profit_of
from trainer.types import Group
from trainer.world import headlines
from trainer.world.actions import BUY, SELL, Decision
from trainer.world.agents import SCRIPTED, sized
from trainer.world.chance import between
from trainer.world.exchange import Book, Exchange
from trainer.world.guard import DEFAULT_LIMITS
from trainer.world.market import Hour, Market, News, outcomes_of
from trainer.world.observation import Offer, messages_for, observe
from trainer.world.record import action_of

FIRST_WINDOW = "2026-03-02T00:00"
MIN_DECISIONS = 200
"""Below this skill counts as not measured."""
PROBED = 12
"""Groups that are shown again in changed ways, each of another story or window."""
_BALANCES = 2_000.0, 50_000.0


@dataclass(frozen=True, slots=True)
class OutcomeShares:
    """What profit says of soundness in simulated material: nothing, if both shares are a half."""

    decisions: int
    sound_that_lost: float
    careless_that_won: float


@dataclass(frozen=True, slots=True)
class Material:
    """Groups to show the judge, and facts about them that the judge does not see."""

    name: str
    """``simulated`` or ``windows``."""
    groups: tuple[Group, ...]
    probed: tuple[Group, ...]
    """Those of ``groups`` that are also shown in changed ways."""
    story_of: Mapping[str, str]
    """By group: groups of the same story, or window, are one piece of evidence."""
    sound: Mapping[str, bool]
    """By trajectory, whether its decision followed the news; empty for windows of a real game."""

    @property
    def where(self) -> str:
        """The suffix of its line names."""
        return "" if self.name == "simulated" else " (own windows)"

    @property
    def shares(self) -> OutcomeShares:
        """Counted, not assumed."""
        won = {True: list[bool](), False: list[bool]()}
        for group in self.groups:
            for member in group.trajectories:
                if member.trajectory_id in self.sound:
                    won[self.sound[member.trajectory_id]].append((profit_of(member, group.outcomes) or 0.0) > 0)
        sound, careless = won[True], won[False]
        return OutcomeShares(
            decisions=len(sound) + len(careless),
            sound_that_lost=1 - sum(sound) / max(1, len(sound)),
            careless_that_won=sum(careless) / max(1, len(careless)),
        )


def own(groups: Sequence[Group]) -> Material:
    """The user's own windows: nobody knows which decisions were sound."""
    chosen = tuple(groups[:PROBED])
    return Material("windows", chosen, chosen, {group.group_id: group.window_id for group in chosen}, {})


def simulated(groups: int, agents: int, seed: int) -> Material:
    """Designed hours. ConfigurationError if there are too few decisions to measure skill."""
    if groups * agents < MIN_DECISIONS or groups < 2 * PROBED or groups % 4:
        raise ConfigurationError(
            f"--groups {groups} with --group-agents {agents} give no certificate: it takes at least {MIN_DECISIONS} "
            f"decisions, and {2 * PROBED} groups or more in fours, such as --groups 36 --group-agents 6."
        )
    market = Market(seed=seed, luck=0.0, stage="one", decisions=1)
    windows = windows_from(FIRST_WINDOW, groups)
    found, probed = list[Group](), list[Group]()
    story_of, sound = dict[str, str](), dict[str, bool]()
    for story in range(groups // 2):
        images = (windows[2 * story], windows[2 * story + 1])
        for image, window_id in enumerate(images):
            hour = _hour(market, images[0], window_id, direction=-1 if image else 1, goes_against=story % 2 == 1)
            group, followed = _played(hour, agents, story, seed)
            found.append(group)
            story_of[group.group_id] = f"story {story}"
            sound |= followed
            if story < PROBED and image == story // 2 % 2:
                probed.append(group)
    return Material("simulated", tuple(found), tuple(probed), story_of, sound)


def _hour(market: Market, drawn_for: str, window_id: str, *, direction: int, goes_against: bool) -> Hour:
    """The hour that the market has drawn for ``drawn_for``, with this direction of its news and of its price."""
    drawn = market.hour(drawn_for)
    ticker, minutes = drawn.tickers[0], drawn.minutes
    start, last = ticker.start_price, ticker.last_hour_price
    move = abs(ticker.end_price / start - 1) * (-direction if goes_against else direction)
    text = headlines.headline(ticker.symbol, direction, "trained", market.seed, "certificate", drawn_for)
    return replace(
        drawn,
        window_id=window_id,
        tickers=(
            replace(
                ticker,
                last_hour_price=last if direction > 0 else round(2 * start - last, 2),
                end_price=round(start * (1 + move), 2),
                direction=direction,
            ),
        ),
        news=(News(minutes[0] - 2, text, ticker.symbol, direction),),
    )


def _played(hour: Hour, agents: int, story: int, seed: int) -> tuple[Group, dict[str, bool]]:
    """The hour with its agents, and who followed the news. With an odd number of them the halves take turns."""
    [ticker] = hour.tickers
    sound = (agents + story // 2 % 2) // 2
    verbs = (BUY, SELL) if ticker.direction > 0 else (SELL, BUY)
    decisions = [sized(Offer(verbs[agent >= sound], ticker.symbol), DEFAULT_LIMITS) for agent in range(agents)]
    exchange = Exchange(hour)
    messages = messages_for(observe(hour, 0, exchange.quotes(0)), hour.stage.name)
    price = exchange.clear(0, decisions)[ticker.symbol]
    closing = exchange.close().closing
    members = list[AgentTrajectory]()
    for agent, decision in enumerate(decisions):
        place = agent if agent < sound else agent - sound
        book = Book(round(between(*_BALANCES, seed, "balance", hour.window_id, place), 2), 0.0)
        call = LLMCall(model=SCRIPTED, messages=list(messages), response=str(decision))
        members.append(_trajectory(hour, agent, book, decision, call, price, closing))
    group = Group(f"{hour.window_id}/1", hour.window_id, tuple(members), outcomes_of(hour, closing, closing))
    return group, {member.trajectory_id: agent < sound for agent, member in enumerate(members)}


def _trajectory(
    hour: Hour, agent: int, book: Book, decision: Decision, call: LLMCall, price: float, closing: Mapping[str, float]
) -> AgentTrajectory:
    """The agent's hour as the reader would return it, without the database."""
    name = f"{hour.window_id}-{agent}"
    after = book.filled(decision, price).settled(closing)
    state = EnvironmentState(balance=book.balance, lifetime_pnl=book.lifetime_pnl)
    action = action_of(decision, None, price, book.stake, hour)
    return AgentTrajectory(
        trajectory_id=name,
        agent_id=name,
        window_id=hour.window_id,
        window_hours=1,
        start_time=start_of(hour.window_id),
        end_time=end_of(hour.window_id, 1),
        steps=[Step(step_number=0, state=state, llm_calls=[call], action=action)],
        content_hash=name,
        size_bytes=0,
        final_balance=after.balance,
        lifetime_pnl=after.lifetime_pnl,
    )
