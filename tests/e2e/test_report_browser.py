"""The report as a person opens it: a file in a real browser, on a phone and on a desk, in light and in dark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from data_bridge.database import open_database
from tests.builders_report_run import HOSTILE, RUN, record_run
from tests.conftest import in_own_loop
from trainer.report.drawing import number

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
PHONE, DESK = 390, 1280

CUT_OFF = """() => [...document.querySelectorAll('svg text')].filter(text => {
    const box = text.getBBox(), frame = text.ownerSVGElement.viewBox.baseVal;
    return box.x < -1 || box.x + box.width > frame.width + 1 || box.y < -3 || box.y + box.height > frame.height + 3;
}).map(text => text.ownerSVGElement.getAttribute('aria-label') + ': ' + text.textContent)"""
"""Words of pictures that stick out of them."""

FAINT = """() => {
    const channels = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
    const light = colour => channels(colour).slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = element => {
        for (let one = element; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (channels(colour)[3] !== 0) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    return [...document.querySelectorAll('body *')].filter(element => {
        const words = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        if (!words || !element.getClientRects().length || element.tagName === 'title') return false;
        const style = getComputedStyle(element);
        const [a, b] = [light(element.tagName === 'text' ? style.fill : style.color), light(behind(element))];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
    }).map(element => element.tagName + '.' + element.getAttribute('class') + ': ' + element.textContent.slice(0, 40));
}"""
"""Words with too little contrast to what is behind them."""


@dataclass
class Opened:
    """A page in a browser, and everything that went wrong or out."""

    page: Page
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


@dataclass(frozen=True)
class Reported:
    path: Path
    database_url: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Rows straight from the ledger."""

        async def fetch() -> list[dict[str, Any]]:
            async with open_database(self.database_url, self.path.parent) as database:
                return [dict(row) for row in await database.pool.fetch(query)]

        return in_own_loop(fetch)

    def ask_one(self, query: str) -> Any:
        [row] = self.ask(query)
        [value] = row.values()
        return value


@pytest.fixture
def reported(database_url: str, tmp_path: Path) -> Reported:
    """The page of a run whose agents and judge write what nobody should trust, as scripts/report.py leaves it."""

    async def record() -> None:
        async with open_database(database_url, tmp_path) as database:
            await record_run(database, tmp_path, words=HOSTILE)

    in_own_loop(record)
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), RUN, "--json"]
    asked = subprocess.run(
        [*command, "--database-url", database_url, "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert asked.returncode == 0, asked.stderr
    return Reported(Path(json.loads(asked.stdout)["report"]), database_url)


@contextmanager
def opened(browser: Browser, path: Path, width: int, scheme: Any) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.faults.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.faults.append(str(error)))
    found.page.on("dialog", lambda dialog: found.faults.append(f"dialog: {dialog.message}"))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.set_default_timeout(10_000)
    found.page.goto(path.as_uri())
    yield found
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_is_whole_quiet_and_readable(browser: Browser, reported: Reported, width: int, scheme: str) -> None:
    with opened(browser, reported.path, width, scheme) as shown:
        page = shown.page
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(FAINT) == []
        assert page.evaluate("document.querySelectorAll('script, img, iframe, object').length") == 0
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (scheme == "dark")
        assert page.locator("svg").count() >= 10
        assert shown.faults == []
        assert [url for url in shown.requests if not url.startswith(("file:", "data:"))] == []


def test_the_figures_in_the_browser_are_the_ledger_s(browser: Browser, reported: Reported) -> None:
    trained = "FROM hindsight.batch_trajectories JOIN hindsight.batches USING (batch_id) WHERE state = 'trained'"
    with opened(browser, reported.path, DESK, "light") as shown:
        assert shown.text("#headline") == "hindsight@step2 was promoted"
        assert shown.text("#windows-trained") == str(reported.ask_one(f"SELECT count(DISTINCT window_id) {trained}"))
        assert shown.text("#trajectories-trained") == str(reported.ask_one(f"SELECT count(*) {trained}"))
        assert shown.text("#steps") == str(reported.ask_one("SELECT count(*) FROM hindsight.checkpoints"))
        assert shown.text("#left-out") == str(reported.ask_one("SELECT count(*) FROM hindsight.exclusions"))
        cost = reported.ask_one("SELECT sum(cost_usd) FROM hindsight.judge_calls")
        assert shown.text("#cost") == f"${cost:.2f}"
        reasons = {
            row["reason"]: row["n"]
            for row in reported.ask("SELECT reason, count(*)::text AS n FROM hindsight.exclusions GROUP BY 1")
        }
        cells = shown.page.locator("#exclusions-table tr").all()
        assert dict(row.inner_text().split("\t") for row in cells) == reasons
        [kept] = reported.ask("SELECT gain, gain_low, gain_high, reasons FROM hindsight.evaluations")
        gain = shown.page.locator("#figures tr", has_text="candidate's gain over it").locator("td").nth(1).inner_text()
        interval = f"{number(kept['gain_low'])} to {number(kept['gain_high'])}"
        assert gain.split("\n") == [number(kept["gain"]), interval]
        assert shown.text(".reason") == kept["reasons"][0]


def test_every_link_leads_somewhere_and_a_square_of_the_calendar_to_its_window(
    browser: Browser, reported: Reported
) -> None:
    with opened(browser, reported.path, PHONE, "light") as shown:
        page = shown.page
        missing = """() => [...document.querySelectorAll('a')].map(link => link.getAttribute('href'))
            .filter(href => !document.getElementById(href.slice(1)))"""
        assert page.evaluate(missing) == []
        square = page.locator("svg a:has(.hour)").first
        target = square.get_attribute("href")
        assert target is not None
        square.click()
        assert page.url.endswith(target)
        assert page.locator(":target").is_visible()
        assert shown.faults == []
