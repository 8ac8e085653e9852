"""What is in a Parquet file, and what a codec costs."""
