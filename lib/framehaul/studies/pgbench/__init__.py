"""PostgreSQL services, or configurations of one, compared by pgbench."""
