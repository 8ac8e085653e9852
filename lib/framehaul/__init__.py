"""framehaul: how fast, and how faithfully, a dataframe reaches PostgreSQL or ClickHouse and comes back."""
