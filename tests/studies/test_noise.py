"""One technique under two names, warm and cold."""

from __future__ import annotations

import inspect
from pathlib import Path

import polars as pl
import pytest

from framehaul.bench import store
from framehaul.studies.noise import study as noise
from framehaul.studies.registry import NOISE
from framehaul.studies.scaling.study import COMPARED
from framehaul.techniques import techniques
from tests.conftest import WHOLE, numbers_of


def test_a_variant_is_the_same_code_under_another_name() -> None:
    for one in techniques("postgres", "read"):
        every = noise.variants(one)
        assert len({changed.key for changed in every.values()}) == len(every)
        for changed in every.values():
            assert changed.function.__code__ is one.function.__code__
            assert inspect.iscoroutinefunction(changed.function) == inspect.iscoroutinefunction(one.function)
            assert (changed.client, changed.driver, changed.contract) == (one.client, one.driver, one.contract)


@WHOLE
def test_every_variant_ran_in_every_round(out: Path) -> None:
    passes = store.read(out / "results" / NOISE.results, noise.Result)
    assert set(passes["status"]) == {"ok"}, passes["reason"].to_list()
    compared = [(*where, name) for where, names in COMPARED.items() for name in names]
    assert set(passes.select("database", "direction", "technique", "variant", "pass").rows()) == {
        (*one, variant, number)
        for one in compared for variant in (noise.AS_IT_IS, noise.AGAIN, noise.COLD) for number in numbers_of(out)
    }  # fmt: skip
    assert passes["minor_faults"].null_count() == 0
    blocks = noise.writeup_blocks(out / "results")
    assert blocks["noise"].count("PostgreSQL write") == 2
    assert blocks["cold"].count("ClickHouse read") == 2


def of(again: list[float], cold: list[float]) -> pl.DataFrame:
    """Passes of one technique, which takes a second, and of its variants."""
    seconds = {noise.AS_IT_IS: [1.0, 1.01, 0.99], noise.AGAIN: again, noise.COLD: cold}
    rows = [
        noise.Result(
            run_id="r", database="postgres", direction="read", technique="a", label="A", variant=variant, rows=1000,
            pass_=number, seconds=each, rows_per_s=1000 / each, minor_faults=number, client_system_s=0.1,
        )
        for variant, times in seconds.items() for number, each in enumerate(times, 1)
    ]  # fmt: skip
    frame = pl.DataFrame([*map(vars, rows)], infer_schema_length=None).rename({"pass_": "pass"})
    return frame.cast(store.schema_of(noise.Result))  # type: ignore[arg-type]


@pytest.mark.parametrize(("again", "alarms"), (([1.01, 0.99, 1.0], 0), ([2.0, 2.02, 1.98], 1)))
def test_a_false_alarm_is_counted_and_what_is_slower_cold_is_said(again: list[float], alarms: int) -> None:
    passes = of(again, [2.0, 2.02, 1.98])
    assert str(noise.same_table(passes)).count("| slower |") == alarms
    (line,) = str(noise.cold_table(passes)).splitlines()[2:]
    assert "| 0.50x (0.50 to 0.50 in 3 rounds) | slower | 2 -> 2 | 0.100 -> 0.100 |" in line
