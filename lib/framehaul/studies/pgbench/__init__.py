"""Services of PostgreSQL under pgbench."""
