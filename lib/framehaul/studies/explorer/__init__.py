"""Every pass of every run, to be looked at (notebook 00)."""
