"""One change at a time (notebook 07)."""
