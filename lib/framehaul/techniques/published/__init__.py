"""The techniques of the published comparison, made right where they lost data."""
