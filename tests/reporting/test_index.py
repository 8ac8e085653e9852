"""The page of all results, in a real browser, from results that a test knows."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from framehaul.bench import committed, store
from framehaul.bench.store import Writer
from framehaul.reporting import index, pages
from framehaul.reporting.index import Entry
from framehaul.reporting.tables import UNSTABLE, Listing, words
from framehaul.studies import collected
from framehaul.studies.fidelity import STUDY as FIDELITY
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques
from framehaul.techniques.registry import REQUIREMENTS
from tests.bench.test_store import result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browsed = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium)")
MEGABYTES = 3
WRITE: dict[str, Any] = {
    "notebook": "01_postgres_write", "database": "postgres", "direction": "write", "contract": "append",
}  # fmt: skip
EVIL = "a & b <img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # The sandbox of Chromium asks for rights that root in a container has not.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small run."""
    out = tmp_path_factory.mktemp("out")
    (out / "results").mkdir()
    names = {"polars_asyncpg_copy_binary": 0.1, "pandas_asyncpg_copy_binary": 0.2, "polars_psycopg_copy_text": 0.4}
    with Writer(out / "results" / "postgres_write.csv") as writer:
        for technique, seconds in names.items():
            frame, driver, _ = technique.split("_", 2)
            for number in (1, 2, 3):
                one = result(technique, number, seconds * (1 + number / 100), driver=driver, label=technique)
                writer.write(replace(one, **WRITE, frame=frame))
        bad = result("pandas_adbc_ingest", 1, None, status="failed", reason=EVIL, driver="adbc", label=EVIL)
        writer.write(replace(bad, **WRITE, frame="pandas"))
    with Writer(out / "results" / "postgres_read.csv") as writer:
        one = result("polars_psycopg_copy_text", 1, 0.3, driver="psycopg", label='a read, quoted "x"')
        writer.write(replace(one, **WRITE | {"notebook": "02_postgres_read", "direction": "read", "contract": None}))
    reports = out / "reports"
    reports.mkdir()
    entries = [Entry("01_postgres_write", "Writes: all", "How fast?", "01_postgres_write.html")]
    index.write(reports, entries, {"runs": {}}, "", collected.page(out / "results"))
    return reports / "index.html"


class Opened:
    """A page, with what its console and its network said."""

    def __init__(
        self, browser: Browser, home: Path, view: str = "", shown: str = "#measurements tbody tr", **how: Any
    ) -> None:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **how)
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.loaded: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.loaded.append(request.url))
        self.page.goto(f"{home.as_uri()}{view}")
        self.page.wait_for_selector(shown)

    def techniques(self) -> list[str]:
        return self.page.locator("td.technique small").all_inner_texts()

    def choose(self, name: str, value: str) -> None:
        self.page.locator(f"select[name={name}]").select_option(value)

    def copied(self, button: str) -> str:
        self.page.locator(button).click()
        self.page.locator(button, has_text="Copied").wait_for()
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text

    def violations(self) -> list[str]:
        found = Axe().run(self.page).response
        assert found["passes"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found["violations"]]


@pytest.fixture
def opened(browser: Browser, home: Path) -> Iterator[Opened]:
    one = Opened(browser, home)
    yield one
    one.page.context.close()
    assert one.said == []
    assert {url.partition(":")[0] for url in one.loaded if not url.startswith("data:")} == {"file"}


WRITES = ["polars_asyncpg_copy_binary", "pandas_asyncpg_copy_binary", "polars_psycopg_copy_text", "pandas_adbc_ingest"]


@browsed
def test_it_begins_with_the_writes_of_this_run_the_fastest_first_and_failures_with_their_reason(opened: Opened) -> None:
    assert opened.techniques() == WRITES
    assert "failed" in opened.page.locator("tbody tr").last.inner_text()
    assert EVIL in opened.page.locator("tbody tr").last.inner_text()
    assert opened.page.title() == "framehaul: results"


@browsed
def test_lists_narrow_it_down_and_another_direction_is_another_study(opened: Opened) -> None:
    opened.choose("frame", "pandas")
    assert opened.techniques() == ["pandas_asyncpg_copy_binary", "pandas_adbc_ingest"]
    opened.choose("status", "ok")
    assert opened.techniques() == ["pandas_asyncpg_copy_binary"]
    opened.choose("frame", "any")
    opened.choose("status", "any")
    opened.choose("direction", "read")
    assert opened.techniques() == ["polars_psycopg_copy_text"]
    opened.page.locator("input[type=search]").fill("no such technique")
    assert "Nothing fits" in opened.page.locator("#count").inner_text()
    opened.page.locator("#reset").click()
    assert opened.techniques() == WRITES


@browsed
def test_a_link_gives_back_the_view_that_it_was_copied_from(opened: Opened, browser: Browser) -> None:
    opened.choose("frame", "polars")
    opened.page.locator("input[type=search]").fill("copy")
    opened.page.locator("th.technique").click()
    opened.page.locator("[data-pair]").first.check()
    found, link = opened.techniques(), opened.copied("#copy-link")
    assert found == sorted(WRITES[0::2])
    opened.page.locator("nav a").first.click()
    assert opened.page.evaluate("location.href") == link, "an anchor of the page is no view"
    again = browser.new_page()
    again.goto(link)
    again.wait_for_selector("#measurements tbody tr")
    assert again.locator("td.technique small").all_inner_texts() == found
    assert again.locator("[data-pair]").first.is_checked()
    assert again.locator("input[type=search]").input_value() == "copy"
    again.close()


@browsed
def test_a_name_opens_code_and_terms_and_escape_leads_back_to_it(opened: Opened) -> None:
    name = opened.page.locator("button.name").first
    name.focus()
    opened.page.keyboard.press("Enter")
    dialog = opened.page.locator("dialog[open]")
    assert "async def polars_asyncpg_copy_binary(" in dialog.inner_text()
    assert "nothing until it commits" in dialog.inner_text()
    assert "open=" in opened.page.url
    opened.page.keyboard.press("Escape")
    opened.page.wait_for_function("!location.hash.includes('open=')")
    focused = opened.page.evaluate("document.activeElement.textContent")
    assert focused == "polars_asyncpg_copy_binary"


@browsed
def test_two_are_compared_round_by_round(opened: Opened) -> None:
    compare = opened.page.locator("#compare")
    assert compare.is_disabled()
    for at in (0, 1):
        opened.page.locator("[data-pair]").nth(at).check()
    compare.click()
    said = opened.page.locator("dialog p").first.inner_text()
    assert said.startswith(
        f"The first ({WRITES[0]}) has 2.00x the rows/s of the second ({WRITES[1]}) (2.00x to 2.00x in"
    )
    assert opened.page.locator("dialog pre").count() == 4
    names = opened.page.locator("dialog section h3").all_inner_texts()
    assert names == [f"First: {WRITES[0]}", f"Second: {WRITES[1]}"]


@browsed
def test_a_column_is_sorted_both_ways_and_what_was_not_measured_comes_last(opened: Opened) -> None:
    head = opened.page.locator("th.speed .dt-column-order")
    head.click()
    opened.page.wait_for_function("location.hash.includes('sort=speed')")
    assert opened.techniques() == [*WRITES[2::-1], WRITES[3]]
    head.press("Space")
    opened.page.wait_for_function("location.hash.includes('sort=-speed')")
    assert opened.techniques() == WRITES


@browsed
def test_back_takes_back_a_choice_and_the_view_of_everything_has_an_address(opened: Opened) -> None:
    opened.choose("frame", "pandas")
    opened.page.locator("button.name").first.click()
    opened.page.go_back()
    opened.page.locator("dialog[open]").wait_for(state="detached")
    assert opened.techniques() == [WRITES[1], WRITES[3]]
    opened.page.go_back()
    opened.page.wait_for_function("document.querySelectorAll('td.technique').length > 3")
    assert opened.techniques() == WRITES
    for name in ("run", "study", "database", "direction", "table", "road"):
        opened.choose(name, "any")
    every = opened.techniques()
    assert len(every) == 100
    opened.page.reload()
    opened.page.wait_for_selector("#measurements tbody tr")
    assert opened.techniques() == every


@browsed
@pytest.mark.parametrize(
    "hash_", ["#sort=-speed&open=gone", "#sort=none&page=x&open=pair&compare=a&compare=a",
              "#sort=&search=%25&database=constructor", "#page=-3&sort=speed"],
)  # fmt: skip
def test_a_damaged_link_shows_what_it_can_and_says_what_it_cannot(browser: Browser, home: Path, hash_: str) -> None:
    one = Opened(browser, home, f"{hash_}&run=this+run", shown="#measurements tbody")
    assert one.said == []
    assert not one.page.locator("dialog[open]").count()
    said = one.page.locator("#count").inner_text()
    assert ("not on this page" in said) == ("gone" in hash_ or "pair" in hash_)
    assert "native code" not in one.page.content()
    assert len(one.techniques()) == (0 if "constructor" in hash_ else 5)
    one.page.context.close()


@browsed
def test_a_row_of_a_later_page_stays_there_when_it_is_chosen(opened: Opened) -> None:
    opened.page.goto(f"{opened.page.url.partition('#')[0]}#sort=-speed&page=2")
    opened.page.reload()
    opened.page.wait_for_selector("#measurements tbody tr")
    second = opened.techniques()
    opened.page.locator("[data-pair]").nth(3).check()
    assert opened.techniques() == second
    assert "page=2" in opened.page.url
    assert opened.page.evaluate("document.activeElement.dataset.pair") is not None
    opened.page.locator("button.name").nth(5).click()
    opened.page.keyboard.press("Escape")
    opened.page.locator("dialog[open]").wait_for(state="detached")
    assert opened.techniques() == second


@browsed
def test_what_is_shown_can_be_copied_as_csv_and_as_markdown(opened: Opened) -> None:
    opened.choose("direction", "read")
    [row] = csv.DictReader(io.StringIO(opened.copied("#copy-csv")))
    assert row["Technique"] == 'a read, quoted "x" (polars_psycopg_copy_text)'
    assert row["Rows/s"]
    assert (row["Database"], row["Direction"], row["Passes"]) == ("PostgreSQL", "read", "1")
    opened.choose("direction", "write")
    rows = [*csv.DictReader(io.StringIO(opened.copied("#copy-csv")))]
    assert rows[-1]["Reason"] == EVIL
    assert float(rows[0]["Slowest"]) <= float(rows[0]["Rows/s"]) <= float(rows[0]["Fastest"])
    opened.choose("direction", "read")
    lines = opened.copied("#copy-markdown").splitlines()
    assert len(lines) == 3
    assert len({line.count("|") for line in lines}) == 1


@browsed
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_all_can_read_it(browser: Browser, home: Path, width: int, scheme: Any) -> None:
    one = Opened(browser, home, color_scheme=scheme, viewport={"width": width, "height": 800})
    one.page.locator("[data-pair]").first.check()
    assert one.violations() == []
    if width < 720:
        one.page.locator("select[name=sort]").select_option("speed")
        assert one.techniques() == [*WRITES[2::-1], WRITES[3]]
        assert one.page.locator("td.technique .narrow").first.is_visible()
    one.page.locator("button.name").first.click()
    assert one.violations() == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    one.page.context.close()


@browsed
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_notebook_can_be_read_by_all(browser: Browser, tmp_path: Path, width: int) -> None:
    rows = [{"name": "x" * 40, "status": "ok", "unstable": True} for _ in range(30)]
    wide = Listing([*(words(f"column {at}", "name") for at in range(12)), UNSTABLE], rows)._repr_html_()
    cells = [
        nbformat.v4.new_markdown_cell("# A page\n\nSome words, and [a link](16_noise.ipynb#x) among them.\n\n## Code"),
        nbformat.v4.new_code_cell(
            f"print('{'long ' * 80}')",
            outputs=[
                nbformat.v4.new_output("display_data", {"text/html": wide}),
                nbformat.v4.new_output("stream", name="stdout", text="long " * 80),
            ],
        ),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "x.ipynb")
    pages.export(tmp_path / "x.ipynb", tmp_path / "x.html")
    opened = Opened(browser, tmp_path / "x.html", shown="table", viewport={"width": width, "height": 800})
    opened.page.locator("summary", has_text="code").first.click()
    assert opened.page.locator('a[href="16_noise.html#x"]').count() == 1
    assert opened.page.locator(".listing .dt-layout-cell[tabindex='0']").count() == 1
    assert opened.violations() == []
    assert opened.said == []
    opened.page.context.close()


def test_every_technique_of_the_committed_runs_is_on_one_small_page_with_its_code(tmp_path: Path) -> None:
    page = collected.page(committed.RUN)
    index.write(tmp_path, [], store.read_metadata(committed.RUN), "", page)
    assert (tmp_path / "index.html").stat().st_size < MEGABYTES * 1e6
    assert {run["name"] for run in page["runs"]} == {row[0] for row in page["rows"]}
    known = page["techniques"]
    tried = set(store.read_cells(committed.RUN / FIDELITY.results).select("database", "direction", "technique").rows())
    measured = set(read_all(committed.RUN).select("database", "direction", "technique").rows())
    there = [one for one in techniques() if one.key in measured]
    assert len(there) > len(techniques()) / 2  # those that came since wait for the next run that is kept
    for one in there:
        shown = known["/".join(one.key)]
        code = "\n".join(page["blocks"][at] for at in shown["code"])
        assert f"def {one.name}(" in code
        assert shown["terms"].get("locks") == (one.contract.locks if one.contract else None)
        assert shown["asks"] == [REQUIREMENTS[word] for word in one.requires]
        if one.key in tried:
            assert shown["types"], one.name


def test_nothing_in_the_page_can_end_its_script(home: Path) -> None:
    text = home.read_text("utf8")
    assert EVIL not in text
    assert len(re.findall(r"</script>", text)) == text.count("<script")
    assert json.dumps(EVIL) not in text
