"""Called without having chosen a technique: `to_sql`, `write_database`, `read_sql`, `insert`, as manuals do."""
