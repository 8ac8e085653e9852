"""Techniques that are faster or otherwise better than the published ones."""
