"""From JSON lines to Parquet."""
