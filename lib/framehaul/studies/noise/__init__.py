"""Noise: the same technique measured under two names, and with memory that the process must first request."""

from framehaul.studies.noise.study import run, variants

__all__ = ["run", "variants"]
