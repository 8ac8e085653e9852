"""Upserts: rows with a new key are inserted, and rows with an existing key are updated."""
