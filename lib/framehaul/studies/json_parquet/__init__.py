"""From JSON lines to Parquet (notebook 14)."""
