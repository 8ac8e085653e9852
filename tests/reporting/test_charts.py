"""Figures as a reader sees them: nothing is cut off or hidden, and everything that is drawn is explained."""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from framehaul.bench import statistics
from framehaul.reporting import charts, tables
from framehaul.techniques import FAMILIES
from tests.bench.test_store import passes, result

CELLS = pl.DataFrame({"label": ["new"], "origin": ["beyond"], "case": ["a"], "outcome": ["unheard of"], "rows": [1]})
LONG = "http.client INSERT FORMAT ArrowStream into a new table, then EXCHANGE TABLES, from Polars"
OUTCOMES = {"exact": charts.Outcome("#009E73", "", "exact"), "silent": charts.Outcome("#882255", "!", "lost")}


@pytest.fixture(autouse=True)
def _figures_are_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "shown", lambda figure, _: figure)


def assert_nothing_is_cut(figure: Figure) -> None:
    with mpl.rc_context(charts.STYLE):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    inner, outer = figure.get_tightbbox(canvas.get_renderer()), figure.bbox_inches
    assert np.subtract(outer.min, inner.min).max() <= 0.01
    assert np.subtract(inner.max, outer.max).max() <= 0.01


def test_a_place_that_is_rounded_otherwise_gives_the_same_bytes_and_another_figure_other_ids() -> None:
    def drawn(left: float, name: str) -> str:
        figure = Figure()
        figure.add_axes((left, 0.1, 0.5, 0.8)).bar([1], [2])
        return charts.svg(figure, name)

    assert drawn(0.1, "a") == drawn(0.1 + 1e-13, "a")
    (first,), (second,) = (re.findall('clipPath id="(.*?)"', drawn(0.1, name)) for name in "ab")
    assert first != second
    assert f"url(#{first})" in drawn(0.1, "a")


def test_bars_fit_and_what_failed_or_was_skipped_has_the_reason_instead_of_a_bar(tmp_path: Path) -> None:
    every = passes(
        *(result(family, seconds=0.2, family=family, label=LONG) for family in [*FAMILIES][:9]),
        result("behind", rows=10, label="behind"), result("behind", 2, 30.0, rows=10, label="behind"),
        result("bad", seconds=None, status="failed", reason="content differs " * 20),
        result("absent", seconds=None, status="skipped", reason="no extension"),
        directory=tmp_path,
    )  # fmt: skip
    frame = statistics.medians(every, ["label", "family", "origin"])
    figure: Any = charts.bars(frame, name="x")
    assert_nothing_is_cut(figure)
    (axes,), (legend,) = figure.axes, figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert {text.get_text() for text in legend.get_texts()} >= {"COPY, binary", "row fetch"}
    text, again = charts.svg(figure, "x"), charts.svg(charts.bars(frame, name="x"), "x")  # type: ignore[arg-type]
    assert again == text, "the same data gives the same bytes"
    assert "FAILED: content differs content differs " in text
    assert "skipped (the table says why)" in text
    assert len(axes.patches) == frame["rows_per_s"].count()
    shown: Any = tables.show(frame.select("label", "rows_per_s", "status", "reason"))
    assert re.search(r'<tr class="failed">.*failed.*content differs', shown._repr_html_())
    assert re.search(r'<tr class="skipped">.*skipped.*no extension</td>', shown._repr_html_())


@pytest.mark.parametrize("panel", ["", "case"])
def test_nothing_is_drawn_for_an_empty_frame(panel: str) -> None:
    empty, named = CELLS.clear(), dict[str, Any](name="x", panel=panel)
    assert charts.bars(empty, color="origin", **named) is None
    assert charts.lines(empty, color="label", **named) is None
    assert charts.points(empty, x="rows", y="rows", color="label", label="label", **named) is None
    assert charts.outcomes(empty, heading="", x="case", outcome="outcome", outcomes=OUTCOMES, **named) is None


@pytest.mark.parametrize("asked", [2, 30])
def test_an_outcome_map_grows_down_the_page_and_says_what_its_letters_mean(asked: int) -> None:
    names = [f"case {number}" for number in range(asked)]
    cells = pl.DataFrame([
        {"label": f"{LONG} {technique}", "origin": origin, "case": name, "half": half, "outcome": "silent"}
        for technique, origin in (("old", "published"), ("new", "beyond"), ("newer", "beyond"))
        for name, half in zip(names, "a" * (asked // 2) + "b" * (asked // 2), strict=True)
    ])  # fmt: skip
    columns: dict[str, Any] = {"x": "case", "outcome": "outcome", "group": "half"}
    figure: Any = charts.outcomes(cells, name="x", heading="heading", outcomes=OUTCOMES, **columns)
    assert_nothing_is_cut(figure)
    (axes,) = figure.axes
    down = [text.get_text() for text in axes.get_yticklabels()]
    assert len(down) == max(asked, 3)
    techniques: list[Any] = axes.get_xticklabels() if asked > 3 else axes.get_yticklabels()
    assert [text.get_color() for text in techniques] == [charts.NAME_INKS["published"], charts.INK, charts.INK]
    assert len(axes.lines) == 1
    (letters,) = axes.findobj(PathCollection)
    assert np.asarray(letters.get_facecolor()).tolist() == [[1, 1, 1, 1]]
    assert np.asarray(letters.get_offsets()).shape == (3 * asked, 2)
    assert "!: lost" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_an_outcome_that_a_map_does_not_know_is_not_left_out() -> None:
    with pytest.raises(KeyError, match="unheard of"):
        charts.outcomes(CELLS, name="x", heading="heading", x="case", outcome="outcome", outcomes=OUTCOMES)
