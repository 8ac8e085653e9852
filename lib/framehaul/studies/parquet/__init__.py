"""What is in a Parquet file, and who writes it (notebook 13)."""
