"""Noise: a technique is measured under several names."""

import inspect
from dataclasses import replace

from framehaul.studies import noise
from framehaul.techniques import techniques


def test_a_variant_is_the_same_code_under_another_name() -> None:
    for one in techniques("postgres", "read"):
        every = noise.variants(one).values()
        assert len({changed.key for changed in every}) == 3
        for changed in every:
            assert changed.function.__code__ is one.function.__code__
            assert inspect.iscoroutinefunction(changed.function) == inspect.iscoroutinefunction(one.function)
            assert replace(changed, function=one.function) == one
