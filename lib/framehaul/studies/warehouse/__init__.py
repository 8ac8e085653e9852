"""From PostgreSQL to a warehouse: compressed CSV against Parquet."""
