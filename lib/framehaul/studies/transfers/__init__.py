"""Every technique of one database and direction (notebooks 01 to 04)."""
