"""Techniques: functions that move one dataframe, each as an engineer would paste it."""

from framehaul.techniques.registry import DRIVERS, FAMILIES, Technique, technique, techniques, upserts

__all__ = ["DRIVERS", "FAMILIES", "Technique", "technique", "techniques", "upserts"]
