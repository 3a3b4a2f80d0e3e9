"""Settings: precedence, ``run.toml``, and one sentence that names the setting when it is wrong."""

import logging
import tomllib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.errors import ConfigurationError
from data_bridge.redaction import redact
from tests.env_example import example as written_example
from trainer.cli import train_mmo
from trainer.config.commands import COMMANDS, EvaluateSettings, ServeSettings, TrainSettings, all_keys, all_variables
from trainer.config.settings import PREFIX, C, extra_of, flag_of, has_flag, public_values, settings_of
from trainer.config.sources import load
from trainer.train.backends.art_interface import base_model_of, clip_range_of, learning_rate_of

NOWHERE = Path("/nonexistent")


def loaded(*argv: str, environ: dict[str, str] | None = None, dotenv: Path = NOWHERE) -> TrainSettings:
    return loaded_as(TrainSettings, argv, environ, dotenv)


def loaded_as(cls: type[C], argv: Sequence[str], environ: dict[str, str] | None = None, dotenv: Path = NOWHERE) -> C:
    return load(
        cls,
        argv,
        prog="train_mmo.py",
        description="",
        environ=environ or {},
        dotenv=dotenv,
        known_variables=all_variables(),
        known_keys=all_keys(),
    )


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("HINDSIGHT_MIN_AGENTS=4\nHINDSIGHT_MAX_GROUP=5\nHINDSIGHT_SEED=6\n")
    environ = {"HINDSIGHT_MIN_AGENTS": "7", "HINDSIGHT_MAX_GROUP": "8"}
    settings = loaded("--min-agents", "9", environ=environ, dotenv=dotenv)
    assert (settings.windows.min_agents, settings.groups.max_group, settings.chance.seed) == (9, 8, 6)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("90m", timedelta(minutes=90)), ("1.5h", timedelta(minutes=90)), ("3650d", timedelta(days=3650))],
)
def test_a_duration_is_a_number_and_a_unit(written: str, meant: timedelta) -> None:
    assert loaded("--lookback", written).windows.lookback == meant


def test_an_empty_variable_counts_as_unset() -> None:
    assert loaded(environ={"DATABASE_URL": "", "HINDSIGHT_DROPOUT": ""}).secrets.database_url is None


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
    assert loaded("--select", "max-variance", "4", "--seed", "1").groups.select == "max-variance 4"
    assert loaded("--select", "max-variance 4").groups.select == "max-variance 4"


def test_an_example_of_a_url_keeps_its_words() -> None:
    example = "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    assert redact(example) == example
    assert redact("postgresql://USER:password@HOST/DB") == "postgresql://USER:[secret]@HOST/DB"


def former_variables() -> set[str]:
    """Names of an earlier version, which still work and are not advertised."""
    former = (extra_of(field, "formerly") for command in COMMANDS for _, _, field in settings_of(command))
    return {PREFIX + name.upper() for name in former if name}


def test_the_example_environment_lists_every_variable_with_its_default_and_breaks_nothing() -> None:
    example = Path(__file__).parents[2] / ".env.example"
    assert example.read_text() == written_example(), "`python -m tests.env_example > .env.example` writes it anew"
    lines = [line for line in example.read_text().splitlines() if line and not line.startswith("#")]
    assert {line.split("=")[0] for line in lines} == all_variables() - former_variables()
    assert loaded(dotenv=example) == loaded()


# run.toml


RUN_TOML = """
[windows]
lookback = "36h"
min_agents = 4
allow_partial_outcomes = true

[groups]
select = "max-variance 4"

[judge]
judge_model = "gpt-5-mini"
max_cost = 2.5

[training]
learning_rate = 1e-5
stop_on = ["entropy<0.02", "kl>3"]

[run]
promote = false
"""


def written(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def test_a_run_toml_and_the_flags_that_it_stands_for_give_the_same_configuration(tmp_path: Path) -> None:
    flags = ["--lookback", "36h", "--min-agents", "4", "--allow-partial-outcomes", "--select", "max-variance", "4"]
    flags += ["--judge-model", "gpt-5-mini", "--max-cost", "2.5", "--learning-rate", "1e-5"]
    flags += ["--stop-on", "entropy<0.02,kl>3", "--no-promote"]
    from_file, from_flags = loaded("--config", written(tmp_path, RUN_TOML)), loaded(*flags)
    assert from_file == from_flags
    assert from_file.model_dump(exclude_unset=True) == from_flags.model_dump(exclude_unset=True)
    assert public_values(from_file) == public_values(from_flags) != public_values(loaded())


def test_a_flag_wins_over_a_variable_over_the_file_over_run_toml_over_the_default(tmp_path: Path) -> None:
    names = ["min_agents", "min_actions", "max_group", "seed", "min_windows"]
    config = written(
        tmp_path, "[windows]\nmin_agents = 5\nmin_actions = 5\n[groups]\nmax_group = 5\n[chance]\nseed = 5\n"
    )
    dotenv = tmp_path / ".env"
    dotenv.write_text("".join(f"HINDSIGHT_{name.upper()}=6\n" for name in names[:3]))
    environ = {f"HINDSIGHT_{name.upper()}": "7" for name in names[:2]}
    values = public_values(loaded("--config", config, "--min-agents", "8", environ=environ, dotenv=dotenv))
    assert [values[name] for name in names] == [8, 7, 6, 5, 3]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[window]\nlookback = '7d'", "[window] is not a section of settings (did you mean windows?)"),
        ("lookback = '7d'", "[lookback] is not a section of settings"),
        ("[windows]\nlokback = '7d'", "windows.lokback is not a setting (did you mean lookback?)"),
        ("[windows]\nmax_group = 4", "windows.max_group is not a setting"),
        ("[secrets]\njudge_api_key = 'sk-12345678'", "judge_api_key is a secret: set JUDGE_API_KEY instead"),
        ("[secrets]\ndatabase_url = 'sk-12345678'", "database_url is a secret: set DATABASE_URL instead"),
        ("[secrets]\nserve_key = 'sk-12345678'", "serve_key is a secret: set HINDSIGHT_SERVE_KEY instead"),
        ("[run]\ndry_run = true", "dry_run can only be set on the command line"),
        ("[windows]\nlookback = 'soon'", "windows.lookback (in "),
        ("[windows]\nmin_agents = 1", "windows.min_agents (in "),
        ("[windows\n", "is not TOML"),
    ],
)
def test_what_a_run_toml_cannot_hold_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded("--config", written(tmp_path, text))
    assert sentence in str(caught.value)
    assert "run.toml" in str(caught.value)
    assert "sk-12345678" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_toml_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--config: .*run\.toml cannot be read"):
        loaded("--config", str(tmp_path / "run.toml"))


def test_the_configuration_that_is_saved_holds_no_secret_and_reads_back_to_the_same_settings(tmp_path: Path) -> None:
    keys = {"WANDB_API_KEY": "very-secret-key-1", "JUDGE_API_KEY": "very-secret-key-2"}
    environ = {**keys, "DATABASE_URL": "postgres://me:hunter22@db/game", "HINDSIGHT_RETRY_AFTER": "90m"}
    path = tmp_path / "saved.toml"
    flags = ["--lookback", "90m", "--select", "max-variance 4", "--dropout", "0.25", "--home", str(tmp_path / "home")]
    saved = loaded(*flags, "--dry-run", "--save-config", str(path), environ=environ)
    text = path.read_text()
    assert not any(secret in text for secret in ("very-secret", "hunter22", "secrets", "dry_run"))
    assert tomllib.loads(text)["windows"]["lookback"] == "90m"
    assert loaded("--config", str(path), "--dry-run", environ=environ) == saved
    again = tmp_path / "again.toml"
    loaded("--config", str(path), "--save-config", str(again))
    assert again.read_text() == text


@pytest.mark.parametrize("backend", ["local", "serverless"])
def test_what_a_backend_decides_where_nothing_is_set_is_left_to_it_in_a_saved_configuration(
    tmp_path: Path, backend: str
) -> None:
    path = str(tmp_path / "saved.toml")
    saved = loaded("--backend", backend, "--loss", "cispo", "--save-config", path)
    read = loaded("--config", path)
    assert base_model_of(backend, read.model) == base_model_of(backend, saved.model)
    assert learning_rate_of(read.training) == learning_rate_of(saved.training)
    assert clip_range_of(read.training) == clip_range_of(saved.training)


def test_a_run_toml_of_the_training_can_be_given_to_another_command(tmp_path: Path) -> None:
    path = str(tmp_path / "saved.toml")
    loaded("--config", written(tmp_path, RUN_TOML), "--model", "mine", "--canary", "0.2", "--save-config", path)
    for command in COMMANDS:
        actions = {"TraceSettings": ["export", "week.jsonl"], "LessonsCommand": ["list"], "PromptsCommand": ["list"]}
        argv = actions.get(command.__name__, [])
        loaded_as(command, [*argv, "--config", path])
    evaluating = loaded_as(EvaluateSettings, ["--config", path])
    assert (evaluating.model.model, evaluating.judge.judge_model) == ("mine", "gpt-5-mini")
    assert evaluating.windows.lookback == timedelta(hours=36)


# Help, and names of an earlier version


def help_of_the_training(flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        train_mmo.main([flag])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_help_of_the_training_fits_two_screens_and_the_full_one_lists_every_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, full = (help_of_the_training(flag, capsys) for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 100
    told, told_in_full = ({word.strip("[],") for word in text.split()} for text in (short, full))
    assert {"--help-all", "--config", "--save-config", "--lookback"} <= told
    flags = {flag_of(name, field) for _, name, field in settings_of(TrainSettings) if has_flag(field)}
    assert flags - told_in_full == set()
    assert flags - told, "the short one leaves some out"


@pytest.mark.parametrize(
    ("argv", "environ", "former"),
    [
        ([], {"HINDSIGHT_MOST_WAITING": "9"}, "HINDSIGHT_MOST_WAITING"),
        (["--most-waiting", "9"], {}, "--most-waiting"),
        (["--most-waiting=9"], {}, "--most-waiting"),
    ],
)
def test_a_former_name_still_works_with_a_warning(
    argv: list[str], environ: dict[str, str], former: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = loaded_as(ServeSettings, argv, environ)
    assert settings.server.max_waiting == 9
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert former in warning
    assert "max_waiting" in warning.lower().replace("-", "_")


def test_the_new_name_wins_over_a_former_one_and_nobody_is_warned_of_it(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"HINDSIGHT_MOST_WAITING": "9", "HINDSIGHT_MAX_WAITING": "10"}
    assert loaded_as(ServeSettings, [], environ).server.max_waiting == 10
    assert loaded_as(ServeSettings, ["--max-waiting", "11"]).server.max_waiting == 11
    assert caplog.records == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--engines", "0"], "--engines"),
        (["--engines", "-1"], "--engines"),
        (["--engines", "65"], "--engines"),
        (["--engines", "two"], "--engines"),
        (["--engines", "4", "--threads", "2"], "--engines 4 cannot divide --threads 2: each needs one"),
    ],
)
def test_a_number_of_engines_that_makes_no_sense_is_refused(argv: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        loaded_as(ServeSettings, argv)


def test_one_engine_in_the_server_itself_is_the_default() -> None:
    assert loaded_as(ServeSettings, []).server.engines == 1
    assert loaded_as(ServeSettings, ["--engines", "2", "--threads", "2"]).server.engines == 2
    assert loaded_as(ServeSettings, [], {"HINDSIGHT_ENGINES": "3"}).server.engines == 3
