"""Settings: precedence, and one sentence that names the setting when it is wrong."""

from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.errors import ConfigurationError
from data_bridge.redaction import redact
from tests.env_example import example as written_example
from trainer.config.commands import all_variables
from trainer.config.sections import TrainSettings
from trainer.config.sources import load, public_values


def loaded(*argv: str, environ: dict[str, str] | None = None, dotenv: Path = Path("/nonexistent")) -> TrainSettings:
    return load(
        TrainSettings,
        argv,
        prog="train_mmo.py",
        description="",
        environ=environ or {},
        dotenv=dotenv,
        known_variables=all_variables(),
    )


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("HINDSIGHT_MIN_AGENTS=4\nHINDSIGHT_MAX_GROUP=5\nHINDSIGHT_SEED=6\n")
    environ = {"HINDSIGHT_MIN_AGENTS": "7", "HINDSIGHT_MAX_GROUP": "8"}
    settings = loaded("--min-agents", "9", environ=environ, dotenv=dotenv)
    assert (settings.min_agents, settings.max_group, settings.seed) == (9, 8, 6)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("90m", timedelta(minutes=90)), ("1.5h", timedelta(minutes=90)), ("3650d", timedelta(days=3650))],
)
def test_a_duration_is_a_number_and_a_unit(written: str, meant: timedelta) -> None:
    assert loaded("--lookback", written).lookback == meant


def test_an_empty_variable_counts_as_unset() -> None:
    assert loaded(environ={"DATABASE_URL": "", "HINDSIGHT_DROPOUT": ""}).database_url is None


@pytest.mark.parametrize(
    ("argv", "environ", "named"),
    [
        (["--min-agents", "1"], {}, "--min-agents"),
        (["--min-agents", "many"], {}, "--min-agents"),
        (["--lookback", "soon"], {}, "--lookback"),
        (["--backend", "abacus"], {}, "--backend"),
        (["--lokback", "7d"], {}, "--lokback"),
        ([], {"HINDSIGHT_MAX_DROPOUT": "1.5"}, "HINDSIGHT_MAX_DROPOUT"),
        ([], {"HINDSIGHT_MAX_DROPUOT": "0.5"}, "HINDSIGHT_MAX_DROPUOT"),
        (["--judge", "llm"], {}, "JUDGE_MODEL"),
        (["--until", "tomorrow"], {}, "--until: write a moment as"),
        (["--until", "0001-01-01T00:00"], {}, "--until: write a moment as"),
        (["--until", "9999-12-31T23:59"], {}, "--until: write a moment as"),
        (["--lookback", "99999999w"], {}, "--lookback: write a duration of at most 3650d"),
        (["--lookback", "9" * 400 + "m"], {}, "--lookback: write a duration of at most 3650d"),
        ([], {"HINDSIGHT_JUDGE_TIMEOUT": "3651d"}, "HINDSIGHT_JUDGE_TIMEOUT: write a duration of at most 3650d"),
        (["--statement-timeout", "25d"], {}, "--statement-timeout"),
        (["--windows-per-iteration", "1000000000"], {}, "--windows-per-iteration"),
        (["--model", "../elsewhere"], {}, "--model"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(argv: list[str], environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(*argv, environ=environ)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_variable_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean HINDSIGHT_LOOKBACK"):
        loaded(environ={"HINDSIGHT_LOOKBAK": "7d"})


@pytest.mark.parametrize("variable", ["JUDGE_MODLE", "EVAL_JUDGE_MODLE", "JUDGE_TEMPER"])
def test_a_variable_that_begins_like_the_judges_is_meant_for_us(variable: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{variable} is not a setting"):
        loaded(environ={variable: "gpt-5-mini"})


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("DATABASE_URI", "DATABASE_URL"), ("JUDGE_MODLE", "JUDGE_MODEL"), ("WANDB_API_KEYS", "WANDB_API_KEY")],
)
def test_a_misspelt_name_in_the_file_is_refused_with_the_right_one(tmp_path: Path, misspelt: str, meant: str) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"{misspelt}=x\n")
    with pytest.raises(ConfigurationError) as caught:
        loaded(dotenv=dotenv)
    assert str(caught.value) == f"{misspelt} (in .env) is not a setting: did you mean {meant}?"


def test_what_belongs_to_others_is_ignored(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("ANTHROPIC_API_KEY=x\nTEST_DATABASE_URL=x\nOPENAI_BASE_URL=x\nNEXT_PUBLIC_URL=x\n")
    assert loaded(environ={"DATABASE_URI": "x", "WANDB_MODE": "x"}, dotenv=dotenv) == loaded()


def test_a_secret_is_neither_dumped_nor_printed() -> None:
    settings = loaded(environ={"WANDB_API_KEY": "very-secret-key-1", "DATABASE_URL": "postgres://me:hunter22@db/game"})
    dumped = str(public_values(settings)) + str(settings)
    assert "very-secret-key-1" not in dumped
    assert "hunter22" not in dumped
    assert (
        redact("key very-secret-key-1 at postgres://me:other@db/game")
        == "key [secret] at postgres://me:[secret]@db/game"
    )


def test_a_password_in_an_address_is_not_dumped() -> None:
    values = public_values(loaded(environ={"JUDGE_BASE_URL": "https://me:hunter33@judge.example/v1"}))
    assert values["judge_base_url"] == "https://me:[secret]@judge.example/v1"


def test_a_key_on_the_command_line_is_refused_and_not_repeated() -> None:
    for argv in (
        ["--judge-api-key", "sk-12345678"],
        ["--judge-api-key=sk-12345678"],
        ["--jugde-api-key", "sk-12345678"],
    ):
        with pytest.raises(ConfigurationError) as caught:
            loaded(*argv)
        assert "sk-12345678" not in str(caught.value)
        assert "api-key" in str(caught.value)
    with pytest.raises(ConfigurationError, match="set JUDGE_API_KEY instead"):
        loaded("--judge-api-key", "sk-12345678")


def test_a_rule_of_two_words_needs_no_quotes() -> None:
    assert loaded("--select", "max-variance", "4", "--seed", "1").select == "max-variance 4"
    assert loaded("--select", "max-variance 4").select == "max-variance 4"


def test_an_example_of_a_url_keeps_its_words() -> None:
    example = "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    assert redact(example) == example
    assert redact("postgresql://USER:password@HOST/DB") == "postgresql://USER:[secret]@HOST/DB"


def test_the_example_environment_lists_every_variable_with_its_default_and_breaks_nothing() -> None:
    example = Path(__file__).parents[2] / ".env.example"
    assert example.read_text() == written_example(), "`python -m tests.env_example > .env.example` writes it anew"
    lines = [line for line in example.read_text().splitlines() if line and not line.startswith("#")]
    assert {line.split("=")[0] for line in lines} == all_variables()
    assert loaded(dotenv=example) == loaded()
