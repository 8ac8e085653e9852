"""framehaul.write and framehaul.read as techniques, which are measured like all others, with their lookups."""
