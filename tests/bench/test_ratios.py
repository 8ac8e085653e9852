"""What is said of ratios is true as often as it claims: noise as it was measured, drift, one outlier in twenty."""

import math
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from framehaul.bench import ratios, statistics
from framehaul.bench.ratios import Ratio

NOISE, UNEVEN, DRIFT, OUTLIERS = 0.06, 0.5, 0.02, 1 / 20
"""Of the logarithm of rows/s: its median over techniques, how far they differ; from round to round; how many."""
Speeds = Callable[[float], list[float]]


def machine(random: np.random.Generator, rounds: int) -> Speeds:
    """Makes the logarithms of the speeds of one technique after another, in rounds on one machine."""
    drift = random.normal(0, DRIFT, rounds).cumsum()

    def passes(speed: float) -> list[float]:
        noise = random.normal(0, NOISE * math.exp(random.normal(0, UNEVEN)), rounds)
        slower = np.where(random.random(rounds) < OUTLIERS, np.log(random.uniform(1.3, 3, rounds)), 0)
        return list(math.log(speed) + drift + noise - slower)

    return passes


def over(one: list[float], other: list[float]) -> Ratio:
    return Ratio([a - b for a, b in zip(one, other, strict=True)])


def row(name: str, logs: list[float]) -> dict[str, object]:
    """A row of `statistics.medians`, as far as ratios are made of it."""
    return {"name": name, "rounds": [{"pass": at, "speed": math.exp(log)} for at, log in enumerate(logs, 1)]}


@pytest.mark.parametrize("rounds", (6, 9, 12))
def test_an_interval_holds_the_true_ratio_as_often_as_it_says(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    times, held = 3_000, 0
    for _ in range(times):
        passes = machine(random, rounds)
        one = over(passes(1.5), passes(1))
        held += one.low <= 1.5 <= one.high
    assert 0.94 <= held / times <= 0.985  # outliers make it wider than it has to be


def test_fewer_than_six_rounds_have_their_range_and_others_an_interval() -> None:
    for values, middle, said in (
        ((1.1,), 1.1, "one round"),
        ((1.1, 1.3, 1.2), 1.2, "1.10 to 1.30 in 3 rounds"),
        ((1.1, 1.2, 1.3, 1.4, 1.5, 1.6), 1.34, "95%: 1.16 to 1.55"),
    ):
        found = Ratio([*map(math.log, values)])
        assert found.ratio == pytest.approx(middle, abs=0.005)
        assert ratios.interval_text(found.low, found.high, found.rounds) == said


def test_only_rounds_that_both_sides_have_are_compared_and_without_one_nothing_is_known() -> None:
    one, other = row("one", [0.0, 1.0, 2.0]), row("other", [5.0])
    assert ratios.ratio_of_rows(one, other).logs == pytest.approx([-5.0])
    assert ratios.tied([other, one]) == [one]
    assert not ratios.tied([one, other]), "it ended early"
    assert Ratio().values == (None,) * 4
    assert math.isnan(Ratio().ratio)
    assert ratios.verdicts([(Ratio(), 1)]) == ["not measured"]


@pytest.mark.parametrize("pairs", (False, True))
@pytest.mark.parametrize("rounds", (3, 9))
@pytest.mark.parametrize("claims", (1, 40))
def test_nineteen_pages_of_twenty_claim_nothing_where_nothing_differs(pairs: bool, rounds: int, claims: int) -> None:
    """A page of equally fast techniques, compared with one of them or in pairs, claims nothing."""
    random, pages, wrong = np.random.default_rng(rounds * claims), 400, 0
    for _ in range(pages):
        passes = machine(random, rounds)
        base = passes(1)
        wrong += any(ratios.shown([(over(passes(1), passes(1) if pairs else base), 1) for _ in range(claims)]))
    assert wrong / pages <= ratios.OUTSIDE + 0.02  # which is 2 standard deviations of 400 pages


@pytest.mark.parametrize("rounds", (3, 6))
def test_no_verdict_contradicts_the_interval_beside_it(rounds: int) -> None:
    random, found = np.random.default_rng(rounds), list[int | None]()
    for _ in range(100):
        passes = machine(random, rounds)
        page = [over(passes(speed), passes(1)) for speed in (1, 1.1, 1.2, 0.8)]
        for one, sign in zip(page, ratios.shown([(one, 1.05) for one in page]), strict=True):
            assert not (sign and one.low <= 1.05 <= one.high)
            found.append(sign)
    assert {*found} == {-1, 0, 1}


@pytest.mark.parametrize("rounds", (3, 9))
def test_the_fastest_is_first_or_tied(rounds: int) -> None:
    """Who has the best median need not be the fastest; the fastest is hardly ever told apart from who has it."""
    random, pages, there = np.random.default_rng(rounds), 300, 0
    speeds = {"best": 1.0, **{f"near {at}": 0.97 for at in range(6)}, **{f"far {at}": 0.6 for at in range(20)}}
    for _ in range(pages):
        passes = machine(random, rounds)
        rows = [row(name, passes(speed)) for name, speed in speeds.items()]
        rows.sort(key=lambda one: -float(np.median([each["speed"] for each in one["rounds"]])))  # type: ignore[attr-defined]
        there += "best" in {one["name"] for one in (rows[0], *ratios.tied(rows))}
    assert there / pages > 1 - ratios.OUTSIDE


def test_students_t_is_that_of_the_tables() -> None:
    for t, degrees in ((12.706, 1), (4.303, 2), (3.182, 3), (2.776, 4), (2.447, 6), (2.262, 9), (2.042, 30)):
        assert ratios.two_sided(t, degrees) == pytest.approx(0.05, abs=1e-4)
        assert ratios.quantile(degrees) == pytest.approx(t, abs=1e-3)
        assert (ratios.two_sided(-t, degrees), ratios.two_sided(0, degrees)) == (ratios.two_sided(t, degrees), 1)


def test_rows_are_judged_together_against_the_row_of_their_group() -> None:
    speeds = {"a": [1.0, 1.01, 0.99], "same": [1.01, 0.99, 1.0], "slow": [0.5, 0.51, 0.49]}
    passes = pl.DataFrame([
        {"group": group, "variant": variant, "pass": number, "rows_per_s": speed, "status": "ok", "reason": None}
        for group in ("x", "y") for variant, each in speeds.items() for number, speed in enumerate(each, 1)
        if (group, variant) != ("y", "a")
    ])  # fmt: skip
    judged = statistics.judged(statistics.medians(passes, ["group", "variant"]), ["group"], pl.col("variant") == "a")
    assert judged.select("group", "variant", "verdict", "base_rows_per_s").rows() == [
        ("x", "same", "inconclusive", 1.0), ("x", "slow", "slower", 1.0),
        ("y", "same", "not measured", None), ("y", "slow", "not measured", None),
    ]  # fmt: skip
    assert judged["ratio"].round(2).to_list() == [1.0, 0.5, None, None]
