"""Every technique of a database and direction."""
