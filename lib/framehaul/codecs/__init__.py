"""PostgreSQL's binary COPY and ClickHouse's Native format, decoded by compiled loops."""
