"""The pages *Now* and *Runs*, logging in, and the table of all pages. They are whole without JavaScript, live with it.

A form posts to a path of its page and is answered with a redirect, so that a reload repeats nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from trainer.console import board_pages, lesson_pages, prompt_pages, shown
from trainer.console.door import COOKIE, REPORT_POLICY, Entrance, address_of
from trainer.console.keys import SESSION_SECONDS, Permission
from trainer.console.problems import Refused, refusal_of
from trainer.console.services import Services, audited
from trainer.console.training_api import StartBody, start, status_of
from trainer.console.visits import SAID, Shown, Visit, problem_page, read_form, render
from trainer.ledger.audit import note_deed
from trainer.ledger.commands import ask_to_stop
from trainer.ledger.read.listings import list_all_runs, run_row
from trainer.ledger.read.now import NowFacts, now_of, steps_of

_PARTS = (board_pages, lesson_pages, prompt_pages)


def routes(services: Services, door: Entrance) -> list[BaseRoute]:
    """Every page, and every form on it."""

    def to(path: str, page: Shown, *, acts: bool = False) -> Route:
        async def guarded(request: Request) -> Response:
            try:
                caller = door.caller(request)
                if caller is None and not acts:
                    return RedirectResponse(f"{door.prefix}/login?{urlencode({'to': _own_path(request)})}", 303)
                return await page(Visit(request, services, door, door.admit(request, caller, acts=acts)))
            except Exception as error:
                return problem_page(request, refusal_of(error), door.prefix)

        return Route(path, guarded, methods=["POST"] if acts else ["GET"], name=page.__name__)

    async def login_page(request: Request) -> Response:
        return await _log_in(request, services, door)

    async def logout(request: Request) -> Response:
        answer = RedirectResponse(f"{door.prefix}/login?said=logged-out", 303)
        answer.delete_cookie(COOKIE, path=door.prefix or "/")
        return answer

    return [
        Route("/login", login_page, methods=["GET", "POST"]),
        Route("/logout", logout, methods=["POST"]),
        to("/", now_page),
        to("/start", start_form, acts=True),
        to("/stop", stop_form, acts=True),
        to("/runs", runs_page),
        to("/runs/{run_id}", run_page),
        to("/runs/{run_id}/report", report_page),
        *(to(path, page) for part in _PARTS for path, page in part.PAGES.items()),
        *(to(path, form, acts=True) for part in _PARTS for path, form in part.FORMS.items()),
    ]


def _own_path(request: Request) -> str:
    query = request.url.query
    return f"{request.scope['path']}{'?' + query if query else ''}"


# Logging in


async def _log_in(request: Request, services: Services, door: Entrance) -> Response:
    """With the one-time code of the printed link, or with a key."""
    target = request.query_params.get("to", "/")
    if not target.startswith("/") or target.startswith(("//", "/login")) or "\\" in target:
        target = "/"
    code, wrong = request.query_params.get("code"), None
    try:
        if request.method == "POST":
            form = await read_form(request)
            door.check_patience(request)
            caller = door.caller_of_key(form.get("key", ""))
            if caller is not None:
                return await _logged_in(request, services, door, caller.role, target, 303)
            door.wrong_keys.count(address_of(request))
            wrong = "That is not a key of this console."
        elif code is not None:
            if door.keys.use_code(code):
                # Not a redirect: one that began on another site would come back without the strict cookie.
                return await _logged_in(request, services, door, Permission.FULL, target, 200)
            door.wrong_links.count(address_of(request))
            wrong = "This link was used or is too old: the key is in the file that the console named when it started."
    except Refused as refused:
        return problem_page(request, refused, door.prefix)
    said = SAID.get(request.query_params.get("said", ""))
    return render(
        request,
        "login",
        code=401 if wrong else 200,
        title="Log in",
        prefix=door.prefix,
        wrong=wrong,
        said=said,
        query=urlencode({"to": target}),
    )


async def _logged_in(
    request: Request, services: Services, door: Entrance, role: Permission, target: str, status: int
) -> Response:
    await note_deed(
        services.database, who=f"a browser ({role})", address=address_of(request), deed="log in", target="", reason=""
    )
    to = f"{door.prefix}{target}"
    answer: Response
    if status == 303:
        answer = RedirectResponse(to, 303)
    else:
        answer = render(request, "welcome", title="Logged in", prefix=door.prefix, to=to)
    answer.set_cookie(
        COOKIE,
        door.keys.session(role),
        max_age=SESSION_SECONDS,
        path=door.prefix or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


# Now


async def now_page(visit: Visit) -> Response:
    position = visit.services.hub.position
    facts = await now_of(visit.services.database, visit.model)
    return visit.page(
        "now",
        "Now",
        facts=facts,
        status=status_of(facts, position),
        curves=shown.curves(facts.steps),
        points=shown.points(facts.steps),
        idempotency_key=secrets.token_urlsafe(12),
        can_resume=_can_resume(facts),
    )


def _can_resume(facts: NowFacts) -> bool:
    return facts.run is not None and facts.run.state in ("interrupted", "failed")


_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "batch_size": int,
    "learning_rate": float,
    "num_epochs": int,
    "max_cost": float,
}


async def start_form(visit: Visit) -> Response:
    form = await visit.form()
    given: dict[str, Any] = {}
    for name, kind in _NUMBERS.items():
        if form.get(name):
            try:
                given[name] = kind(form[name])
            except ValueError:
                raise Refused(422, f"{name.replace('_', ' ')}: write a number.") from None
    if form.get("max_steps"):
        if not form["max_steps"].isdecimal():
            raise Refused(422, "max steps: write a number.")
        given["settings"] = {"training": {"max_steps": int(form["max_steps"])}}
    body = StartBody.model_validate(given)
    async with audited(visit.services, visit.caller, visit.request, "start training", visit.model):
        await start(visit.services, visit.caller, visit.model, body.tables(), form.get("idempotency_key") or None)
    return visit.back("/", "started")


async def stop_form(visit: Visit) -> Response:
    form = await visit.form()
    reason = form.get("reason", "")[:500]
    async with audited(visit.services, visit.caller, visit.request, "stop training", visit.model, reason):
        await ask_to_stop(visit.services.database, visit.model, asked_by=visit.caller.name, reason=reason)
    return visit.back("/", "stopped")


# Runs


async def runs_page(visit: Visit) -> Response:
    runs = await list_all_runs(visit.services.database, model=visit.request.query_params.get("model"), limit=100)
    return visit.page("runs", "Runs", runs=runs)


async def run_page(visit: Visit) -> Response:
    run_id = visit.request.path_params["run_id"]
    found = await run_row(visit.services.database, run_id)
    if found is None:
        raise Refused(404, f"There is no run {run_id!r}.")
    row, hand = found
    steps = await steps_of(visit.services.database, run_id)
    return visit.page("run", f"Run {run_id}", run=row, hand=hand, steps=steps, curves=shown.curves(steps))


async def report_page(visit: Visit) -> Response:
    """The report as ``report.py`` writes it: one file with its own style, in a sandbox."""
    from trainer.ledger.read.run_facts import gather
    from trainer.report.page import render as render_report

    await asyncio.to_thread(import_module, "scipy.stats")  # takes seconds the first time, in which streams must go on
    facts = await gather(visit.services.database, visit.request.path_params["run_id"])
    return HTMLResponse(
        await asyncio.to_thread(render_report, facts), headers={"Content-Security-Policy": REPORT_POLICY}
    )
