"""What a start may set: the settings of ``train_mmo`` as typed fields, but for those that are the host's own.

Secrets and folders are the host's. So are endpoints: whoever could name the judge's address would be sent its key.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from trainer.config.commands import TrainSettings
from trainer.config.settings import extra_of, is_secret, sections_of
from trainer.console.problems import Refused, invalid

HOSTS_OWN_SECTIONS = frozenset({"common", "output", "database", "secrets"})
HOSTS_OWN = frozenset(
    {
        "model",  # named beside the settings
        "judge_base_url",
        "eval_judge_base_url",
        "wandb_base_url",
        "wandb_entity",
        "wandb_project",
        "serve_url",
    }
)
_DURATION = r"^([1-9][0-9]{0,2}[smhd]|[1-9][0-9]?w)$"
_PLAIN = r"^[A-Za-z0-9][A-Za-z0-9 ._/:<>=,-]{0,199}$"


def _type_of(name: str, field: FieldInfo) -> Any:
    """The field's type as JSON has it."""
    kinds = {field.annotation, *get_args(field.annotation)}
    if timedelta in kinds:
        return Annotated[str, Field(pattern=_DURATION, examples=["7d"])]
    if any(getattr(kind, "__origin__", kind) is tuple for kind in kinds):
        return list[Annotated[str, Field(pattern=_PLAIN)]]
    if name == "rubric":
        return Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]  # of the built-in ones: a file is the host's
    if str in kinds:
        return Annotated[str, Field(pattern=_PLAIN)]
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _section(name: str, kind: type[BaseModel]) -> type[BaseModel] | None:
    fields: dict[str, Any] = {}
    for setting, field in kind.model_fields.items():
        if setting in HOSTS_OWN or is_secret(field) or extra_of(field, "flag_only"):
            continue
        fields[setting] = (_type_of(setting, field) | None, Field(default=None, description=field.description))
    if not fields:
        return None
    title = f"Start{name.title()}"
    return create_model(
        title, __config__=ConfigDict(extra="forbid"), __doc__=f"The table [{name}] of run.toml.", **fields
    )


_SECTIONS = {
    name: made
    for name, kind in sections_of(TrainSettings).items()
    if name not in HOSTS_OWN_SECTIONS and (made := _section(name, kind)) is not None
}

StartTables: type[BaseModel] = create_model(
    "StartTables",
    __config__=ConfigDict(extra="forbid"),
    __doc__="Settings as in run.toml: a table for each section.",
    **{name: (made | None, None) for name, made in _SECTIONS.items()},  # type: ignore[call-overload]
)


def check_sections(asked: dict[str, dict[str, Any]]) -> None:
    """Refused (422), with the setting's name, for a value that the training would refuse."""
    from pydantic import ValidationError

    kinds = sections_of(TrainSettings)
    for section, values in asked.items():
        try:
            kinds[section].model_validate(values)
        except ValidationError as error:
            refused = invalid(error)
            raise Refused(422, f"{section}.{refused.message}", field=f"settings.{section}.{refused.field}") from None
