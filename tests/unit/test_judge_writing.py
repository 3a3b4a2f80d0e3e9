"""A text from the judge's model is paid for, limited and recorded as a verdict's call is."""

from __future__ import annotations

from tests.builders_judge import AT_ONCE, SECRETS, judge_settings
from tests.fakes.judge_server import JudgeServer, busy, cut_off, says
from trainer.config.prompts import PromptLimits
from trainer.config.sections import JudgeSettings
from trainer.judge.open import open_judge, open_writing
from trainer.judge.ruler import LlmJudge
from trainer.ledger.verdicts import MemoryVerdicts
from trainer.prompts.market import market_material
from trainer.prompts.structure import parse
from trainer.prompts.writer import MutationWriter

WRITTEN = "<prompt>\nTrade the news.\n\n## Fallbacks\n- If in doubt, sell.\n</prompt>"


async def test_a_mutation_is_written_as_plain_text_and_its_cost_is_recorded() -> None:
    with JudgeServer(script=[busy()], otherwise=says(WRITTEN)) as server:
        async with open_writing(judge_settings(server.base_url), SECRETS, None, "run", retry=AT_ONCE) as model:
            assert model is not None
            writer = MutationWriter(model)
            found = await writer.write(parse("Trade the news.\n"), "try_catch", market_material(), PromptLimits())
            assert found is not None
            assert found.written_by == "judge"
            store = model.calls.store
            assert isinstance(store, MemoryVerdicts)
            assert [call.result.value for _, call in store.calls] == ["busy", "ok"]
            assert model.calls.usage.cost_usd == store.calls[-1][1].cost_usd > 0
        assert [request.format for request in server.requests] == ["text", "text"]


async def test_a_reply_that_was_cut_off_is_none() -> None:
    with JudgeServer(otherwise=cut_off()) as server:
        async with open_writing(judge_settings(server.base_url), SECRETS, None, "run", retry=AT_ONCE) as model:
            assert model is not None
            assert await model.ask("Write.", "Now.") is None


async def test_nothing_is_asked_beyond_the_ceiling_that_it_shares_with_the_judge() -> None:
    with JudgeServer(otherwise=says(WRITTEN)) as server:
        settings = judge_settings(server.base_url, max_cost=1e-6)
        async with (
            open_judge(settings, SECRETS, None, "run") as judge,
            open_writing(settings, SECRETS, None, "run", beside=judge) as model,
        ):
            assert model is not None
            assert isinstance(judge, LlmJudge)
            assert model.calls.budget is judge.budget
            assert await model.ask("Write.", "Now.") is None
        assert server.requests == []


async def test_the_offline_judge_writes_nothing() -> None:
    async with open_writing(JudgeSettings(judge="outcome"), SECRETS, None, "run") as model:
        assert model is None
