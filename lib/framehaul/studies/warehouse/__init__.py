"""The studies of files on their way to a warehouse: from PostgreSQL, what is in a Parquet file, and from JSON lines."""
