"""Techniques: functions that move one dataframe, each as an engineer would paste it.

A write takes an open client, a `Table` and a frame, and returns when the server has committed or acknowledged the rows.
A read takes an open client and a `Table`, and returns the table's content as a fully materialised frame.
"""

from framehaul.techniques.registry import DRIVERS, FAMILIES, Technique, technique, techniques, upserts

__all__ = ["DRIVERS", "FAMILIES", "Technique", "technique", "techniques", "upserts"]
