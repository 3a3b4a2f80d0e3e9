"""One visit to a page: who came, how pages are rendered, how forms are read. Everything that an agent or a model wrote
is escaped."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from data_bridge.redaction import page_text, redacted
from trainer.console import shown
from trainer.console.door import Entrance
from trainer.console.keys import Caller
from trainer.console.operations import read_body
from trainer.console.problems import Refused
from trainer.console.services import Services
from trainer.console.training_api import MODEL

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
_LARGEST_FORM = 64 * 1024

SAID = {
    "started": "The training was asked for; an idle host takes it in a moment.",
    "stopped": "The training stops after the step in hand; it can be resumed.",
    "promoted": "The release was given to the agents.",
    "rolled-back": "The agents were given an earlier release.",
    "canary-started": "A share of the agents uses the release.",
    "canary-finished": "The canary was settled.",
    "canary-ended": "The canary was taken back from its agents.",
    "lessons-asked": "Asked for: an idle host compares decisions with and without these lessons, and the gate rules.",
    "lesson-retired": "The lesson was retired: no agent is shown it any more.",
    "logged-out": "You are logged out.",
}
"""What a page says after a deed; the address has only the word."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page by somebody who may see it."""

    request: Request
    services: Services
    door: Entrance
    caller: Caller

    @property
    def model(self) -> str:
        """The model that the page is about. Refused (422) for what cannot be the name of one."""
        asked = self.request.query_params.get("model", "")
        if asked and re.fullmatch(MODEL, asked) is None:
            raise Refused(422, "model: this cannot be the name of one.", field="model")
        return asked or self.services.model

    def path(self, to: str, **query: str) -> str:
        """A path of ours as the browser must write it, with the model if it is not the usual one."""
        if self.model != self.services.model:
            query.setdefault("model", self.model)
        return f"{self.door.prefix}{to}{'?' + urlencode(query) if query else ''}"

    def page(self, template: str, title: str, **values: Any) -> Response:
        word = self.request.query_params.get("said", "")
        return render(
            self.request,
            template,
            prefix=self.door.prefix,
            title=title,
            caller=self.caller,
            model=self.model,
            visit=self,
            said=SAID.get(word),
            here=self.request.scope["path"],
            **redacted(values, page_text),
        )

    def back(self, to: str, said: str) -> Response:
        return RedirectResponse(self.path(to, said=said), 303)

    async def form(self) -> dict[str, str]:
        return await read_form(self.request)


Shown = Callable[[Visit], Awaitable[Response]]


async def read_form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "Send the form as a form.")
    try:
        text = (await read_body(request, _LARGEST_FORM)).decode()
        given = parse_qs(text, max_num_fields=50, strict_parsing=bool(text))
    except (ValueError, UnicodeDecodeError):
        raise Refused(400, "The form cannot be read.") from None
    return {name: values[-1].strip() for name, values in given.items()}


def render(request: Request, template: str, *, code: int = 200, **values: Any) -> Response:
    text = (
        _environment()
        .get_template(f"{template}.html.jinja")
        .render(**{"prefix": "", "caller": None, "visit": None, "said": None, "model": "", "here": "", **values})
    )
    return HTMLResponse(text, code)


def problem_page(request: Request, refused: Refused, prefix: str = "") -> Response:
    page = render(
        request,
        "problem",
        code=refused.status,
        title="Not done",
        message=refused.problem().error.message,
        prefix=prefix,
    )
    page.headers.update(refused.headers)
    return page


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= shown.FILTERS
    made.globals |= shown.GLOBALS
    return made
