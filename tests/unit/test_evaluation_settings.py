"""Which judge evaluates, and how checkpoints are named on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from data_bridge.errors import ConfigurationError
from trainer.config.commands import EvaluateSettings
from trainer.config.derived import judged_by, keys_of
from trainer.config.sections import JudgeSecrets, JudgeSettings
from trainer.config.settings import settings_from
from trainer.ledger.checkpoints import parse_checkpoint_name


def _judge(**given: Any) -> tuple[JudgeSettings, JudgeSecrets]:
    """Who evaluates by these settings, and with which keys."""
    known = {"judge_model": "trained-to-please", "judge_api_key": "first-key"}
    settings = settings_from(EvaluateSettings, **(known | given))
    return judged_by(settings.judge, settings.evaluation), keys_of(settings.evaluation, settings.secrets)


def test_with_one_judge_that_one_evaluates() -> None:
    chosen, _ = _judge()
    assert chosen.judge_model == "trained-to-please"


def test_with_two_judges_the_other_one_evaluates_with_its_own_key_and_endpoint() -> None:
    chosen, secrets = _judge(
        eval_judge_model="another",
        eval_judge_base_url="http://127.0.0.1:1/v1",
        eval_judge_api_key="second-key",
    )
    assert (chosen.judge, chosen.judge_model, chosen.judge_base_url) == ("llm", "another", "http://127.0.0.1:1/v1")
    assert secrets.judge_api_key is not None
    assert secrets.judge_api_key.get_secret_value() == "second-key"


def test_the_second_judge_uses_the_firsts_key_where_it_has_none() -> None:
    _, secrets = _judge(eval_judge_model="another")
    key = secrets.judge_api_key
    assert key is not None
    assert key.get_secret_value() == "first-key"


def test_the_offline_judge_can_be_asked_for() -> None:
    chosen, _ = _judge(eval_judge="outcome", eval_judge_model="another")
    assert chosen.judge == "outcome"


@pytest.mark.parametrize("name", ["mine@step3", "step3", "3", " 3 "])
def test_a_checkpoint_can_be_named_in_full_or_by_its_step(name: str) -> None:
    assert parse_checkpoint_name(name, "mine") == ("mine", 3)


@pytest.mark.parametrize("name", ["", "step", "mine@", "mine@stepx", "@step3", "-1", "mine"])
def test_anything_else_is_a_sentence(name: str) -> None:
    with pytest.raises(ConfigurationError, match="write it as hindsight@step3"):
        parse_checkpoint_name(name, "hindsight")
