"""The console as a person uses it: a real browser, a real server, trainings in processes of their own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from tests.builders import hours_before, insert_window
from tests.builders_advice import record_advice
from tests.builders_console import FAKE_TRAINING, ROOT, ConsoleProcess
from tests.builders_report_run import HOSTILE, record_run
from tests.conftest import in_own_loop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Dialog, Page

pytestmark = pytest.mark.browser

SECONDS = 60_000
"""Milliseconds that anything may take on a machine with every core busy."""
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SLOW_STEPS = {"FAKE_SECONDS": "2", "HINDSIGHT_GROUPS_PER_STEP": "1"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium was found")
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def ask(database_url: str) -> Callable[..., Any]:
    """The first value of an SQL query."""

    def asked(query: str, *arguments: Any) -> Any:
        async def fetch() -> Any:
            connection = await asyncpg.connect(database_url)
            try:
                return await connection.fetchval(query, *arguments)
            finally:
                await connection.close()

        return in_own_loop(fetch)

    return asked


def with_database(url: str, home: Path, work: Callable[[Database], Coroutine[Any, Any, Any]]) -> Any:
    async def opened() -> Any:
        async with open_database(url, home) as database:
            return await work(database)

    return in_own_loop(opened)


async def play(database: Database) -> None:
    for window_id in hours_before(number=12):
        await insert_window(database.pool, window_id, agents=4)


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
    console = ConsoleProcess(database_url, tmp_path / "home", "--command", FAKE_TRAINING, environment=SLOW_STEPS)
    with console:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        seen = watched(context, console.url)
        page = seen.page
        page.goto(console.link)
        expect(page.locator("#state")).to_contain_text("idle", timeout=SECONDS)
        page.locator("#start").click()
        expect(page.locator("#state")).to_contain_text("training", timeout=SECONDS)
        expect(page.locator("#step")).to_have_text(re.compile(r"^[2-9]$"), timeout=SECONDS)
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


def test_a_server_that_is_killed_and_restarted_is_caught_up_with(
    browser: Browser, database_url: str, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    from playwright.sync_api import expect

    from trainer.ledger.events import EventKind, tell

    async def say(database: Database, numbers: range) -> None:
        for number in numbers:
            await tell(database.pool, EventKind.STEP, {"step": number, "reward": 0.5}, model="hindsight", run_id="r")

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
        assert page.locator("#events li").count() == 20, "a page that stays open does not grow"
        context.close()
    finally:
        console.stop()


PAGES = ("/", "/runs", "/runs/run-1", "/releases", "/data", "/rewards", "/judge", "/patterns", "/advice", "/system")
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text()


@pytest.fixture
def recorded(database_url: str, tmp_path: Path) -> Iterator[ConsoleProcess]:
    """A console over a run in which agents and judge wrote hostile text everywhere."""

    async def record(database: Database) -> None:
        await record_run(database, tmp_path / "home", words=HOSTILE)
        hostile = (HOSTILE, "2026-11-02T10:00")
        await database.pool.execute(
            "INSERT INTO hindsight.exclusions (run_id, trajectory_id, agent_id, window_id, reason, detail)"
            " VALUES ('run-1', $1, $1, $2, 'row_fault', $1)",
            *hostile,
        )
        await database.pool.execute("UPDATE hindsight.runs SET error = $1, host = $1", HOSTILE)
        await database.pool.execute(
            "UPDATE hindsight.batch_trajectories SET agent_id = $1 WHERE agent_id = 'agent-1'", HOSTILE
        )
        await record_advice(database, words=HOSTILE)

    with_database(database_url, tmp_path, record)
    with ConsoleProcess(database_url, tmp_path / "home", "--no-train-here") as console:
        yield console


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1280, "light"), (1280, "dark")])
def test_every_page_is_readable_safe_and_accessible(
    browser: Browser, recorded: ConsoleProcess, width: int, scheme: Any
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=False)
    seen = watched(context, recorded.url)
    page = seen.page
    page.goto(recorded.link)
    page.locator("#now").wait_for()
    for path in PAGES:
        answer = page.goto(f"{recorded.url}{path}")
        assert answer is not None
        assert answer.status == 200, path
        if path == "/data":
            page.locator("#trajectories").wait_for(timeout=SECONDS)
        assert page.locator("main script, main img").count() == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        faults = serious_faults(context, recorded, path)
        assert faults == [], path
    assert seen.faults == []
    assert seen.foreign == []
    context.close()


def serious_faults(context: BrowserContext, console: ConsoleProcess, path: str) -> list[str]:
    """What axe-core finds serious or critical; in a page of its own, as the policy admits no other script."""
    page = context.new_page()
    try:
        page.goto(f"{console.url}{path}")
        session = context.new_cdp_session(page)
        session.send("Page.setBypassCSP", {"enabled": True})
        page.reload()
        page.evaluate(AXE)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    finally:
        page.close()
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
    page.goto(recorded.link)
    page.locator("#now").wait_for()
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
    browser: Browser, recorded: ConsoleProcess, ask: Callable[..., Any]
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
    rows = ask(
        "SELECT array_agg(kind || ' ' || step || ' ' || forced || ' ' || reason ORDER BY promotion_id)"
        " FROM hindsight.promotions WHERE promotion_id > 1"
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
    browser: Browser, database_url: str, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    import httpx

    with_database(database_url, tmp_path, play)
    first = ConsoleProcess(database_url, tmp_path / "a", "--command", FAKE_TRAINING, environment=SLOW_STEPS)
    second = ConsoleProcess(database_url, tmp_path / "b", "--no-train-here")
    with first, second:
        a, b = ({"Authorization": f"Bearer {one.keys.full}"} for one in (first, second))
        started = httpx.post(f"{second.url}/api/v1/training/start", json={}, headers=b).json()

        def status() -> dict[str, Any]:
            found: dict[str, Any] = httpx.get(f"{second.url}/api/v1/training/status", headers=b).json()
            return found

        wait_until(lambda: (status()["step"] or 0) >= 2)
        busy = httpx.post(f"{first.url}/api/v1/training/start", json={}, headers=a)
        assert busy.status_code == 409
        assert "is being trained by" in busy.json()["error"]["message"]
        stopped = httpx.post(f"{second.url}/api/v1/training/stop", json={"reason": "from elsewhere"}, headers=b)
        assert (stopped.status_code, stopped.json()["run_id"]) == (202, started["run_id"])
        wait_until(lambda: ask("SELECT state FROM hindsight.commands WHERE kind = 'start'") == "done")
    assert ask("SELECT state FROM hindsight.runs WHERE run_id = $1", started["run_id"]) == "interrupted"
    assert ask("SELECT exit_code FROM hindsight.commands WHERE kind = 'start'") == 130


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never was"
        time.sleep(0.1)
