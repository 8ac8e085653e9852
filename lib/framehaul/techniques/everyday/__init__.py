"""The first calls that manuals of libraries show: `to_sql`, `write_database`, `read_sql`, `insert`."""
