"""Ablations: pairs of techniques that differ in one thing."""

from framehaul.studies.ablations.study import PAIRS, ratios

__all__ = ["PAIRS", "ratios"]
