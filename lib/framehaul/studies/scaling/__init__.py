"""Scaling: cost against rows."""
