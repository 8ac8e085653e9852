"""Measure drivers that fetch rows: PostgreSQL by the shape of a query, ClickHouse by the types of a table.

Nothing is imported here, because the processes that are measured import this package.
"""
