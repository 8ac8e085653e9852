"""The page of all results, in a real browser, from results that a test knows."""

import csv
import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from framehaul import collected
from framehaul.bench import store
from framehaul.bench.store import writing
from framehaul.reporting import pages, tables
from framehaul.studies.transfers import read_all
from framehaul.techniques import techniques
from framehaul.techniques.registry import REQUIREMENTS
from tests.bench.test_store import result
from tests.reporting.test_pages import markdown, page_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEGABYTES = 0.5
WRITE: dict[str, Any] = {"database": "postgres", "direction": "write", "contract": "append"}
WRITES = ["polars_asyncpg_copy_binary", "pandas_asyncpg_copy_binary", "polars_psycopg_copy_text", "pandas_adbc_ingest"]
EVIL = "a & b <img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        # The sandbox of Chromium asks for rights that root in a container has not.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    (out / "results").mkdir()
    writes, reads = WRITE | {"notebook": "01_postgres_write"}, WRITE | {"notebook": "02_postgres_read"}
    with writing(out / "results" / "postgres_write.csv") as writer:
        for technique, seconds in zip(WRITES, (0.1, 0.2, 0.4), strict=False):
            frame, driver, _ = technique.split("_", 2)
            for number in (1, 2, 3):
                one = result(technique, number, seconds * (1 + number / 100), driver=driver, label=technique)
                writer.write(replace(one, **writes, frame=frame))
        bad = result("pandas_adbc_ingest", 1, None, status="failed", reason=EVIL, driver="adbc", label=EVIL)
        writer.write(replace(bad, **writes, frame="pandas"))
    with writing(out / "results" / "postgres_read.csv") as writer:
        one = result("polars_psycopg_copy_text", 1, 0.3, driver="psycopg", label='a read, quoted "x"')
        writer.write(replace(one, **reads | {"direction": "read", "contract": None}))
    reports = out / "reports"
    reports.mkdir()
    entries = [{"title": "Writes: all", "question": "How fast?", "link": "01_postgres_write.html"}]
    pages.write_index(reports, entries, {"runs": {}}, "", collected.page(out / "results"))
    return reports / "index.html"


class Opened:
    """A page, with what its console and its network said."""

    def __init__(self, browser: Browser, url: str, shown: str = "#measurements tbody tr", **how: Any) -> None:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **how)
        self.page: Page = context.new_page()
        self.said, self.loaded = list[str](), list[str]()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.loaded.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(shown)

    def techniques(self) -> list[str]:
        return self.page.locator("td.label small").all_inner_texts()

    def choose(self, name: str, value: str) -> None:
        self.page.locator(f"select[name={name}]").select_option(value)

    def copied(self, button: str) -> str:
        self.page.locator(button).click()
        self.page.locator(button, has_text="Copied").wait_for()
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text

    def violations(self) -> list[str]:
        found = Axe().run(self.page, options={"preload": False}).response  # a file's styles cannot be fetched again
        assert found["passes"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found["violations"]]


type Visit = Callable[..., Opened]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens addresses; at the end no page said anything or loaded anything but files."""
    visited: list[Opened] = []

    def opened(url: str, **how: Any) -> Opened:
        visited.append(Opened(browser, url, **how))
        return visited[-1]

    yield opened
    for one in visited:
        one.page.context.close()
        assert one.said == []
        assert {url.partition(":")[0] for url in one.loaded if not url.startswith("data:")} == {"file"}


@pytest.fixture
def opened(visit: Visit, home: Path) -> Opened:
    return visit(home.as_uri())


def test_it_begins_with_the_fastest_writes_and_lists_narrow_it_down(opened: Opened) -> None:
    assert opened.techniques() == WRITES
    assert "failed" in opened.page.locator("tbody tr").last.inner_text()
    assert EVIL in opened.page.locator("tbody tr").last.inner_text()
    assert opened.page.title() == "framehaul: results"
    opened.choose("frame", "pandas")
    assert opened.techniques() == ["pandas_asyncpg_copy_binary", "pandas_adbc_ingest"]
    opened.choose("status", "ok")
    assert opened.techniques() == ["pandas_asyncpg_copy_binary"]
    for name, value in (("frame", "any"), ("status", "any"), ("direction", "read")):
        opened.choose(name, value)
    assert opened.techniques() == ["polars_psycopg_copy_text"]  # another direction is another study
    opened.page.locator("input[type=search]").fill("no such technique")
    assert "No measurement matches" in opened.page.locator("#count").inner_text()
    opened.page.locator("#reset").click()
    assert opened.techniques() == WRITES


def test_a_link_gives_back_the_view_that_it_was_copied_from(opened: Opened, visit: Visit) -> None:
    opened.choose("frame", "polars")
    opened.page.locator("input[type=search]").fill("copy")
    opened.page.locator("th.label button").click()
    opened.page.locator("[data-pair]").first.check()
    found, link = opened.techniques(), opened.copied("#copy-link")
    assert found == sorted(WRITES[0::2])
    opened.page.locator("nav a").first.click()
    opened.page.wait_for_function("link => location.href === link", arg=link)  # an anchor of the page is no view
    again = visit(link)
    assert again.techniques() == found
    assert again.page.locator("[data-pair]").first.is_checked()
    assert again.page.locator("input[type=search]").input_value() == "copy"


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
    assert opened.page.evaluate("document.activeElement.textContent") == "polars_asyncpg_copy_binary"


def test_two_are_compared_round_by_round_and_a_column_is_sorted_both_ways(opened: Opened) -> None:
    compare = opened.page.locator("#compare")
    assert compare.is_disabled()
    for at in (0, 1):
        opened.page.locator("[data-pair]").nth(at).check()
    compare.click()
    said = opened.page.locator("dialog p").first.inner_text()
    assert f"({WRITES[0]}) has 2.00x the rows/s of the second ({WRITES[1]}) (2.00x to 2.00x in" in said
    assert opened.page.locator("dialog pre").count() == 2
    opened.page.keyboard.press("Escape")
    head = opened.page.locator("th.rows_per_s button")
    for how, wanted in (("rows_per_s", [*WRITES[2::-1], WRITES[3]]), ("-rows_per_s", WRITES)):  # no speed comes last
        head.click()
        opened.page.wait_for_function(f"location.hash.includes('sort={how}')")
        assert opened.techniques() == wanted


def test_what_is_shown_can_be_copied_as_csv_and_as_markdown(opened: Opened) -> None:
    opened.choose("direction", "read")
    [row] = csv.DictReader(io.StringIO(opened.copied("#copy-csv")))
    assert row["label"] == 'a read, quoted "x"'
    assert row["rows_per_s"]
    assert (row["database"], row["direction"], row["technique"]) == ("postgres", "read", "polars_psycopg_copy_text")
    lines = opened.copied("#copy-markdown").splitlines()
    assert len(lines) == 3
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_all_can_read_it(visit: Visit, home: Path, width: int, scheme: Any) -> None:
    one = visit(home.as_uri(), color_scheme=scheme, viewport={"width": width, "height": 800})
    one.page.locator("[data-pair]").first.check()
    assert one.violations() == []
    if width < 720:
        one.page.locator("select[name=sort]").select_option("rows_per_s")
        assert one.techniques() == [*WRITES[2::-1], WRITES[3]]
        assert one.page.locator("td.label .narrow").first.is_visible()
    one.page.locator("button.name").first.click()
    assert one.violations() == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_notebook_can_be_read_by_all(visit: Visit, tmp_path: Path, width: int) -> None:
    names = [f"x{n}" for n in range(29, -1, -1)]
    columns = {"name": names} | {f"column {at}": ["x" * 40] * len(names) for at in range(13)}
    table: Any = tables.show(pl.DataFrame(columns))
    text = markdown("# A page\n\nSome words, and [a link](16_noise.ipynb#x) among them.\n\n## Code")
    output = nbformat.v4.new_output("display_data", {"text/html": table._repr_html_()})
    page_of(tmp_path / "x.html", text, nbformat.v4.new_code_cell(f"print('{'long ' * 80}')", outputs=[output]))
    pages.write_index(tmp_path, [], {"runs": {}}, "", {})
    url = (tmp_path / "x.html").as_uri()
    opened = visit(url, shown="table", viewport={"width": width, "height": 800})
    opened.page.locator("summary", has_text="code").first.click()
    assert opened.page.locator('a[href="16_noise.html#x"]').count() == 1
    assert opened.page.locator(".listing[tabindex='0']").count() == 1
    assert opened.violations() == []
    opened.page.locator("th button").first.click()
    opened.page.locator(".listing input").fill("X2")
    found = opened.page.locator("tbody tr:visible td:first-child").all_inner_texts()
    assert found == ["x2", *(f"x2{n}" for n in range(10))]


def test_the_committed_runs_fit_into_one_small_page(visit: Visit, tmp_path: Path) -> None:
    page = collected.page(store.RUN)
    pages.write_index(tmp_path, [], store.read_metadata(store.RUN), "", page)
    assert (tmp_path / "index.html").stat().st_size < MEGABYTES * 1e6
    url = (tmp_path / "index.html").as_uri()
    opened = visit(url)
    places = [dict(zip(page["columns"], row, strict=True)) for row in page["rows"]]
    for name in ("network", "table"):
        values = {one[name] for one in places}
        assert len(values) > 3
        opened.page.goto(f"{url}#{name}={min(values).replace(' ', '+')}")
        opened.page.reload()
        wanted = sum(one[name] == min(values) for one in places)
        assert opened.page.locator("#count").inner_text().startswith(f"{wanted} of {len(places)}")


def test_a_technique_of_the_committed_runs_is_there_with_its_code_its_terms_and_what_it_carries() -> None:
    page = collected.page(store.RUN)
    assert {run["name"] for run in page["runs"]} == {row[0] for row in page["rows"]}
    measured = set(read_all(store.RUN).select("database", "direction", "technique").rows())
    there = [one for one in techniques() if one.key in measured]
    assert len(there) > len(techniques()) / 2  # those that came since wait for the next run that is kept
    for one in there:
        shown = page["techniques"]["/".join(one.key)]
        assert f"def {one.name}(" in shown["code"]
        assert shown["terms"].get("locks") == (one.contract.locks if one.contract else None)
        assert shown["asks"] == [REQUIREMENTS[word] for word in one.requires]
