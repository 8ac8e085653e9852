"""How cost grows with rows (notebook 06)."""
