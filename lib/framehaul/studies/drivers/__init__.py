"""The studies of drivers: PostgreSQL drivers by the shape of a query, and clients that fetch rows from ClickHouse."""
