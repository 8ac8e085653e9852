"""Drivers of PostgreSQL by the shape of a query, and clients that fetch from ClickHouse."""
