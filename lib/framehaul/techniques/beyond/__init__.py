"""Techniques faster, or otherwise better, than what was published."""
