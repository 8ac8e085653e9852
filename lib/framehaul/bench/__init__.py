"""Rounds, the clock, verification, the record of a run, and the statistics of its passes."""
