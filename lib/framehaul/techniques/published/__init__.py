"""The techniques of the published comparison, corrected where they lost data."""
