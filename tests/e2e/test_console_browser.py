"""The console as a person uses it: a real browser, a real server, trainings in processes of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from tests.builders import hours_before, insert_window
from tests.builders_advice import record_advice
from tests.builders_console import FAKE_TRAINING, ROOT, ConsoleProcess
from tests.builders_prompts import record_prompts
from tests.builders_report_run import HOSTILE, record_run
from tests.conftest import in_own_loop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

pytestmark = pytest.mark.browser

SECONDS = 60_000
"""Milliseconds that anything may take on a machine with every core busy."""
PACE = "2"
"""Seconds that a step takes while it is watched."""


def value_in(url: str, query: str, *arguments: Any) -> Any:
    """The first value of an SQL query."""

    async def fetch() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    return in_own_loop(fetch)


@pytest.fixture
def ask(database_url: str) -> Callable[..., Any]:
    return partial(value_in, database_url)


def with_database(url: str, home: Path, work: Callable[[Database], Coroutine[Any, Any, Any]]) -> Any:
    async def opened() -> Any:
        async with open_database(url, home) as database:
            return await work(database)

    return in_own_loop(opened)


async def play(database: Database) -> None:
    for window_id in hours_before(number=12):
        await insert_window(database.pool, window_id, agents=4)


def paced(folder: Path) -> dict[str, str]:
    """The environment of a training whose steps can be watched."""
    pace = folder / "pace"
    pace.write_text(PACE)
    return {"FAKE_PACE": str(pace), "HINDSIGHT_GROUPS_PER_STEP": "1"}


def log_in(context: BrowserContext, console: ConsoleProcess) -> None:
    """By the key, as the printed link counts once."""
    answer = context.request.post(
        f"{console.url}/login", form={"key": console.keys.full}, headers={"origin": console.url}
    )
    assert answer.ok


class Watched:
    """A page, with whatever went wrong or out."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page, self.faults, self.foreign = page, list[str](), list[str]()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self.faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda one: None if one.url.startswith(origin) else self.foreign.append(one.url))


def watched(context: BrowserContext, origin: str) -> Watched:
    return Watched(context.new_page(), origin)


def test_a_training_is_started_watched_stopped_and_resumed_in_the_browser(
    browser: Browser, database_url: str, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    from playwright.sync_api import expect

    with_database(database_url, tmp_path, play)
    environment = paced(tmp_path)
    console = ConsoleProcess(database_url, tmp_path / "home", "--command", FAKE_TRAINING, environment=environment)
    with console:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        seen = watched(context, console.url)
        page = seen.page
        page.goto(console.link)
        expect(page.locator("#state")).to_contain_text("idle", timeout=SECONDS)
        page.locator("#start").click()
        expect(page.locator("#state")).to_contain_text("training", timeout=SECONDS)
        page.evaluate(NOTE_STEPS)
        expect(page.locator("#step")).to_have_text(re.compile(r"^[3-9]$"), timeout=SECONDS)
        assert_grown_by_itself(page, ask)
        page.locator("#numbers summary").click()
        expect(page.locator("#steps tbody tr").nth(1)).to_be_visible()
        expect(page.locator(".u-over").first).to_be_visible()

        page.locator("#stop-form input[name=reason]").fill("enough for now")
        page.locator("#stop").click()
        expect(page.locator("#state")).to_contain_text("interrupted", timeout=SECONDS)
        steps = ask("SELECT count(*) FROM hindsight.batches WHERE state = 'trained'")
        expect(page.locator("#step")).to_have_text(str(steps))
        reward = ask("SELECT metrics ->> 'reward' FROM hindsight.batches WHERE step = $1", steps)
        expect(page.locator("#reward")).to_have_text(f"{float(reward):.3f}")
        assert ask("SELECT state FROM hindsight.runs") == "interrupted"

        expect(page.locator("#start")).to_have_text("Resume the training")
        (tmp_path / "pace").write_text("0")
        page.locator("#start").click()
        expect(page.locator("#state")).to_contain_text("last run done", timeout=SECONDS)
        expect(page.locator("#step")).to_have_text("12")
        assert ask("SELECT count(*) FROM hindsight.runs") == 1
        assert ask("SELECT attempts FROM hindsight.runs") == 2
        deeds = ask("SELECT array_agg(deed || ': ' || reason ORDER BY audit_id) FROM hindsight.audit")
        assert deeds == ["log in: ", "start training: ", "stop training: enough for now", "start training: "]
        assert seen.faults == []
        assert seen.foreign == []
        context.close()


NOTE_STEPS = """() => {
    window.shownAt = [];
    const curve = document.querySelector('[data-curve=reward]');
    const note = () => window.shownAt.push([Number(curve.dataset.steps), Date.now()]);
    new MutationObserver(note).observe(curve, {attributes: true, attributeFilter: ['data-steps']});
}"""
"""When the curve had how many steps; gone if the page is loaded again."""


def assert_grown_by_itself(page: Page, ask: Callable[..., Any]) -> None:
    """Each step that the curve has gained is on it within 5 s of its event in the ledger; all but one, as a machine
    with every core busy may be late once."""
    shown = {int(steps): at for steps, at in page.evaluate("window.shownAt")}
    query = (
        "SELECT extract(epoch FROM at)::float8 * 1000 FROM hindsight.events"
        " WHERE kind = 'step' AND data -> 'step' = to_jsonb($1::int)"
    )
    delays = sorted(at - ask(query, step) for step, at in shown.items())
    assert len(delays) >= 2, "the curve did not grow"
    assert delays[-2] < 5_000, f"{delays} ms"


def test_a_server_that_is_killed_and_restarted_is_caught_up_with(
    browser: Browser, database_url: str, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    from playwright.sync_api import expect

    from trainer.ledger.events import EventKind, tell

    async def say(database: Database, numbers: range) -> None:
        for number in numbers:
            await tell(database.pool, EventKind.STEP, {"step": number, "reward": 0.5}, model="hindsight", run_id="r")

    async def say_at_once(database: Database, numbers: range) -> None:
        await database.pool.execute(
            "INSERT INTO hindsight.events (transaction, kind, model, run_id, data) SELECT pg_current_xact_id(), 'step',"
            " 'hindsight', 'r', jsonb_build_object('step', n, 'reward', 0.5) FROM generate_series($1::int, $2::int) n",
            *(numbers.start, numbers.stop - 1),
        )

    console = ConsoleProcess(database_url, tmp_path / "home", "--no-train-here")
    console.start()
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(console.link)
        now = page.locator("#now")
        expect(page.locator("#link")).to_have_text("", timeout=SECONDS)
        with_database(database_url, tmp_path, lambda database: say(database, range(1, 11)))
        expect(now).to_have_attribute("data-received", "10", timeout=SECONDS)
        console.kill()
        expect(page.locator("#link")).to_contain_text("does not answer", timeout=SECONDS)
        with_database(database_url, tmp_path, lambda database: say(database, range(11, 31)))
        console.start()
        with_database(database_url, tmp_path, lambda database: say(database, range(31, 41)))
        expect(now).to_have_attribute("data-received", "40", timeout=SECONDS)
        newest = ask("SELECT max(event_id) FROM hindsight.events")
        expect(now).to_have_attribute("data-position", str(newest))
        expect(page.locator("#step")).to_have_text("40")
        assert page.locator("#events li").count() == 20

        size = page.evaluate("document.querySelectorAll('*').length")
        with_database(database_url, tmp_path, lambda database: say_at_once(database, range(41, 1241)))
        expect(now).to_have_attribute("data-received", "1240", timeout=SECONDS)
        grown = page.evaluate("document.querySelectorAll('*').length")
        assert grown == size, "a page that stays open does not grow"
        expect(page.locator("[data-curve=reward]")).to_have_attribute("data-steps", "200")
        context.close()
    finally:
        console.stop()


PAGES = (
    *("/", "/runs", "/runs/run-1", "/releases", "/data", "/rewards", "/judge", "/patterns", "/advice", "/prompts"),
    "/system",
)
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def recorded(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """A console over a run in which agents and judge wrote hostile text everywhere."""
    home = tmp_path_factory.mktemp("recorded")

    async def record(database: Database) -> None:
        await record_run(database, home, words=HOSTILE)
        hostile = (HOSTILE, "2026-11-02T10:00")
        await database.pool.execute(
            "INSERT INTO hindsight.exclusions (run_id, trajectory_id, agent_id, window_id, reason, detail)"
            " VALUES ('run-1', $1, $1, $2, 'row_fault', $1)",
            *hostile,
        )
        await database.pool.execute("UPDATE hindsight.runs SET error = $1, host = $1", HOSTILE)
        await database.pool.execute(
            "UPDATE hindsight.batch_trajectories SET agent_id = $1, role = $1 WHERE agent_id = 'agent-1'", HOSTILE
        )
        await record_advice(database, words=HOSTILE)
        await record_prompts(database, words=HOSTILE)

    with_database(shared_database_url, home, record)
    with ConsoleProcess(shared_database_url, home, "--no-train-here") as console:
        yield console


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1280, "light"), (1280, "dark")])
def test_every_page_is_readable_safe_and_accessible(
    browser: Browser, recorded: ConsoleProcess, width: int, scheme: Any
) -> None:
    look: dict[str, Any] = {"viewport": {"width": width, "height": 844}, "color_scheme": scheme}
    context, examined = browser.new_context(**look), browser.new_context(**look, bypass_csp=True)
    log_in(context, recorded)
    log_in(examined, recorded)
    seen, examiner = watched(context, recorded.url), examined.new_page()
    page = seen.page
    for path in PAGES:
        answer = page.goto(f"{recorded.url}{path}")
        assert answer is not None
        assert answer.status == 200, path
        if path == "/data":
            page.locator("#trajectories").wait_for(timeout=SECONDS)
        assert page.locator("main script, main img").count() == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert serious_faults(examiner, f"{recorded.url}{path}") == [], path
    assert seen.faults == []
    assert seen.foreign == []
    context.close()
    examined.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_and_what_went_wrong_are_accessible_too(
    browser: Browser, recorded: ConsoleProcess, scheme: Any
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for path in ("/login", "/login?code=used", "/nothing-is-here", "/rewards?agent=nobody"):
        if path.startswith("/rewards"):
            log_in(context, recorded)
        assert serious_faults(page, f"{recorded.url}{path}") == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    context.close()


def serious_faults(page: Page, url: str) -> list[str]:
    """What axe-core finds serious or critical; in a context without the policy, which admits no other script."""
    page.goto(url)
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['html'][:120]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, recorded: ConsoleProcess) -> None:
    context = browser.new_context()
    page = context.new_page()
    alerts = list[str]()

    def dismiss(dialog: Dialog) -> None:
        alerts.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    log_in(context, recorded)
    for path, selector in (
        ("/", ".notice"),
        ("/rewards", "main"),
        ("/releases", "#history"),
        ("/patterns", "main"),
        ("/advice", "main"),
    ):
        page.goto(f"{recorded.url}{path}")
        assert "<script>alert(1)</script>" in page.locator(selector).first.inner_text(), path
    page.goto(f"{recorded.url}/runs/run-1/report")
    assert page.locator("script").count() == 0
    assert alerts == []
    context.close()


def test_advice_shows_what_to_do_first_and_then_what_came_of_it(
    browser: Browser, database_url: str, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    with ConsoleProcess(database_url, tmp_path / "home", "--no-train-here") as console:
        context = browser.new_context()
        page = context.new_page()
        page.goto(console.link)
        page.goto(f"{console.url}/advice")
        assert "No release is promoted" in page.locator("main").inner_text()
        assert "POST /api/v1/advice" in page.locator("main").inner_text()
        with_database(database_url, tmp_path, lambda database: record_run(database, tmp_path / "home"))
        page.reload()
        assert "scripts/calibrate_advice.py" in page.locator("main").inner_text()
        with_database(database_url, tmp_path, record_advice)
        page.reload()
        shown = ask("SELECT count(*) FROM hindsight.advice WHERE state = 'shown'")
        taken = ask("SELECT count(*) FROM hindsight.advice WHERE state = 'shown' AND taken")
        right = ask("SELECT avg(\"right\"::int) FROM hindsight.advice WHERE state = 'shown'")
        assert page.locator("#shown").inner_text() == str(shown)
        assert page.locator("#taken").inner_text().startswith(f"{taken} of")
        assert page.locator("#right").inner_text().startswith(f"{right:.0%}")
        assert page.locator("#lift").inner_text().startswith("+")
        context.close()


def test_a_release_is_promoted_and_rolled_back_by_keyboard_alone(
    browser: Browser, recorded: ConsoleProcess, shared_database_url: str
) -> None:
    from playwright.sync_api import expect

    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{recorded.url}/releases")
    expect(page.locator("input[name=key]")).to_be_focused(timeout=SECONDS)  # autofocus may come after the load event
    page.keyboard.type(recorded.keys.full)
    page.keyboard.press("Enter")
    expect(page.locator("#serving")).to_have_text("hindsight@step2", timeout=SECONDS)

    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.locator(f"{selector}:focus").count():
                return
        raise AssertionError(f"{selector} cannot be reached by Tab")

    tab_to("#checkpoints summary")
    page.keyboard.press("Enter")
    tab_to("#checkpoints input[name=reason]")
    page.keyboard.type("it trades better")
    tab_to("#checkpoints input[name=force]")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.locator("#serving")).to_have_text("hindsight@step1", timeout=SECONDS)
    expect(page.locator(".said")).to_contain_text("given to the agents")
    tab_to("#rollback-form input[name=reason]")
    page.keyboard.type("it does not")
    page.keyboard.press("Enter")
    expect(page.locator("#serving")).to_have_text("hindsight@step2", timeout=SECONDS)
    rows = value_in(
        shared_database_url,
        "SELECT array_agg(kind || ' ' || step || ' ' || forced || ' ' || reason ORDER BY promotion_id)"
        " FROM hindsight.promotions WHERE promotion_id > 1",
    )
    assert rows == ["promotion 1 true it trades better", "rollback 2 false it does not"]
    page.goto(f"{recorded.url}/system")
    assert "promote by force hindsight@step1" in page.locator("#audit").inner_text()
    context.close()


def test_pages_work_without_javascript_and_the_read_only_key_sees_no_buttons(
    browser: Browser, recorded: ConsoleProcess
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{recorded.url}/login")
    page.locator("input[name=key]").fill(recorded.keys.read)
    page.locator("button.primary").click()
    assert page.locator("#step").inner_text() == "2"
    assert page.locator(".chart svg").count() == 4
    assert page.locator("noscript").inner_text().startswith("Without JavaScript")
    for path in ("/", "/releases"):
        page.goto(f"{recorded.url}{path}")
        assert page.locator("main form").count() == 0
    context.close()


def test_a_training_started_on_one_host_is_stopped_from_another(
    database_url: str, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    import httpx

    with_database(database_url, tmp_path, play)
    first = ConsoleProcess(database_url, tmp_path / "a", "--command", FAKE_TRAINING, environment=paced(tmp_path))
    second = ConsoleProcess(database_url, tmp_path / "b", "--no-train-here")
    with first, second:
        a, b = ({"Authorization": f"Bearer {one.keys.full}"} for one in (first, second))
        started = httpx.post(f"{second.url}/api/v1/training/start", json={}, headers=b).json()

        wait_for_event(second, lambda event: event["kind"] == "step" and event["data"]["step"] >= 2)
        busy = httpx.post(f"{first.url}/api/v1/training/start", json={}, headers=a)
        assert busy.status_code == 409
        assert "is being trained by" in busy.json()["error"]["message"]
        stopped = httpx.post(f"{second.url}/api/v1/training/stop", json={"reason": "from elsewhere"}, headers=b)
        assert (stopped.status_code, stopped.json()["run_id"]) == (202, started["run_id"])
        wait_for_event(second, lambda event: event["kind"] == "run" and event["data"]["state"] == "interrupted")
    assert ask("SELECT state FROM hindsight.runs WHERE run_id = $1", started["run_id"]) == "interrupted"
    # Ended by itself, or by its console, which leaves here too and asks whoever is still ending once more.
    assert ask("SELECT exit_code FROM hindsight.commands WHERE kind = 'start'") in (130, -2)


def wait_for_event(console: ConsoleProcess, is_it: Callable[[dict[str, Any]], bool]) -> None:
    """Listen to a console, from the first event on, until it tells the one that is waited for."""
    import httpx

    headers = {"Authorization": f"Bearer {console.keys.full}"}
    with httpx.stream("GET", f"{console.url}/api/v1/events?after=0", headers=headers, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and is_it(json.loads(line.removeprefix("data: "))):
                return
    raise AssertionError("the stream ended")
