"""Measure drivers that fetch rows. Processes that are measured import this package, so it imports nothing."""
