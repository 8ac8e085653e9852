"""Rows that are there already: inserted where their key is new, updated where it is there; a function a way."""
