"""A technique is measured under two names, warm and cold."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

from framehaul.bench import store
from framehaul.studies import noise
from framehaul.studies.registry import NOISE
from framehaul.studies.scaling import COMPARED
from framehaul.techniques import techniques
from tests.conftest import WHOLE, numbers_of


def test_a_variant_is_the_same_code_under_another_name() -> None:
    for one in techniques("postgres", "read"):
        every = noise.variants(one).values()
        assert len({changed.key for changed in every}) == 3
        for changed in every:
            assert changed.function.__code__ is one.function.__code__
            assert inspect.iscoroutinefunction(changed.function) == inspect.iscoroutinefunction(one.function)
            assert replace(changed, function=one.function) == one


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
