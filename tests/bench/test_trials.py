"""Cells are kept as they come and end in the order of the techniques; nobody leaves a race by chance."""

import datetime as dt
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from framehaul.bench import store, trials
from framehaul.bench.meter import Moved, Usage
from framehaul.bench.recording import Recording, recorded, result, which
from framehaul.bench.rounds import Failed, Ok, Rounds
from framehaul.bench.study import Study
from framehaul.bench.trials import Stage, Tried, all_techniques, chosen_techniques, in_time, leaders, stages
from framehaul.techniques import Technique, techniques

FIRST, SECOND = all_techniques()[:2]
DETAIL = 'a, "b"\r\nc\u2028'


@dataclass(frozen=True)
class Cell(Tried):
    fault: str
    detail: str = ""


CELLS = [Cell(**which(technique), fault=fault) for technique in (FIRST, SECOND) for fault in ("x", "y")]


@recorded(Study("99_outcomes", ""), Cell, trials.in_order)
def try_all(this_run: Recording) -> None:
    kept = trials.trials_of(this_run)
    for cell in (CELLS[2], CELLS[0], CELLS[3], CELLS[1]):
        kept.record(replace(cell, detail=DETAIL))
    kept.unavailable[" ".join(SECOND.key)] = "it is not there"


def test_cells_are_in_the_order_of_the_techniques(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    outcomes = tmp_path / "results" / "outcomes.csv"
    try_all()
    found = [Cell(**row) for row in store.read_cells(outcomes).to_dicts()]
    assert found == [replace(cell, detail=DETAIL) for cell in CELLS]
    unavailable = store.read_metadata(outcomes.parent)["runs"]["99_outcomes"]["unavailable"]
    assert unavailable == {f"{SECOND.database} {SECOND.direction} {SECOND.name}": "it is not there"}


def test_ten_days_try_every_technique_and_each_day_the_fewest() -> None:
    first = dt.date(2026, 11, 27)
    days = [{*chosen_techniques("tenth", today=first + dt.timedelta(at))} for at in range(10)]
    assert set.union(*days) == {*all_techniques()}
    assert all(day >= {*chosen_techniques("fewest")} for day in days)
    assert max(map(len, days)) <= len(all_techniques()) / 10 + 1 + len(chosen_techniques("fewest"))


ALL = techniques("clickhouse", "write")
STAGE = Stage(1000, Rounds(2), reach=1.5)


def passes(seconds: dict[str, list[float | None]], rows: int = STAGE.rows) -> pl.DataFrame:
    """Passes of techniques that took so long, or failed."""
    known, made = {one.name: one for one in ALL}, []
    for name, several in seconds.items():
        for number, took in enumerate(several, 1):
            moved = took and Ok(Moved(took, Usage(0, 0, 0), store.EXACT))
            made.append(vars(result("run", "study", known[name], rows, number, moved or Failed("a row is missing"))))
    frame = pl.DataFrame(made, infer_schema_length=None).rename({"pass_": "pass"})
    return frame.select(store.SCHEMA.keys()).cast(store.SCHEMA)  # type: ignore[arg-type]


def named(seconds: dict[str, list[float | None]], stage: Stage = STAGE) -> list[str]:
    return [one.name for one in leaders(ALL, passes(seconds), stage)]


def of(frame: str, origin: str) -> list[Technique]:
    return [one for one in ALL if (one.frame, one.origin) == (frame, origin)]


def beyond(kind: str) -> list[Technique]:
    return [one for one in of("polars", "beyond") if one.contract and one.contract.kind == kind]


def test_who_is_slow_leaves_and_baselines_and_the_best_published_stay() -> None:
    first, second, third, *_ = (one for one in beyond("append") if one.connections == 1)
    published, close, slower, *_ = of("polars", "published")
    pandas, baseline = of("pandas", "beyond")[0], of("none", "baseline")[0]
    staying = named({
        first.name: [1.0, 1.1], second.name: [1.4, 1.3], third.name: [9.0, 2.0], published.name: [5.0, 5.0],
        close.name: [5.4, 5.5], slower.name: [6.0, 6.0], pandas.name: [30.0, 30.0], baseline.name: [40.0, 40.0],
    })  # fmt: skip
    assert set(staying) == {one.name for one in (first, second, published, close, pandas, baseline)}


def test_a_baseline_and_who_loads_in_bulk_decide_nothing_for_those_that_append() -> None:
    baseline, (first, second, *_) = of("polars", "baseline")[0], of("polars", "published")
    for other in (baseline, beyond("bulk_load")[0]):
        seconds: dict[str, list[float | None]] = {other.name: [0.1], first.name: [1.0], second.name: [1.1]}
        assert set(named(seconds)) == {*seconds}
    assert named({baseline.name: [0.1]}) == [baseline.name]


def test_one_pass_that_was_disturbed_or_lucky_drops_nobody_and_a_wrong_one_its_technique() -> None:
    first, *others = [one.name for one in of("polars", "beyond")[:6]]
    usual: dict[str, list[float | None]] = {name: [1.0, 1.1] for name in others}
    assert set(named(usual | {first: [7.0, 1.0]})) == {first, *others}
    assert set(named(usual | {first: [0.01, 1.0]})) == {first, *others}
    assert set(named(usual | {first: [0.1, None]})) == {*others}
    assert named({first: [None, None]}) == []


def test_no_more_than_a_share_stay_but_several_connections_do() -> None:
    single = [one for one in beyond("append") if one.connections == 1]
    several = next(one for one in beyond("append") if one.connections > 1)
    seconds: dict[str, list[float | None]] = {one.name: [1 + at / 100] for at, one in enumerate(single[:9])}
    stage = replace(STAGE, share=0.5)
    assert set(named(seconds | {several.name: [2.5]}, stage=stage)) == {*[*seconds][:5], several.name}
    assert set(named(seconds | {several.name: [9.0]}, stage=stage)) == {*[*seconds][:5]}
    assert len(named(seconds, stage=replace(STAGE, share=0))) == 4


def test_stages_end_with_all_rows_in_all_rounds() -> None:
    for rows, sizes in ((100_000, [12_500, 100_000]), (1, [1])):
        made = stages(rows, Rounds(3, 1, 7), race=True)
        assert [stage.rows for stage in made] == sizes
        assert made[-1].rounds == Rounds(3, 1, 7)
    few, first, second = stages(1_000_000, Rounds(6, 1, 7), race=True)
    assert (few.rows, first.rows, second.rows) == (125_000, 1_000_000, 1_000_000)
    assert (few.rounds, first.rounds, second.rounds) == (Rounds(3, 0, 7), Rounds(3, 1, 7), Rounds(6, 0, 7))
    assert stages(300, Rounds(6, 1, 7), race=False) == [Stage(300, Rounds(6, 1, 7))]


def test_who_would_take_too_long_moves_no_more_rows() -> None:
    slow, fast, *_ = of("polars", "everyday")
    wrong, *_ = of("pandas", "everyday")
    made = passes({slow.name: [2.0, 1.1], fast.name: [0.9, 3.0], wrong.name: [None, None]}, rows=2_500)
    stage = Stage(2_500, Rounds(2))
    # 0.22 s and 0.18 s for an eighth, going by the fastest pass.
    assert in_time([slow, fast, wrong], made, stage, 4_000, race=True) == [fast]
    assert in_time([slow, fast, wrong], made, stage, 3_200, race=True) == [slow, fast]
    assert in_time([slow, fast, wrong], made, stage, 4_000, race=False) == [slow, fast]
