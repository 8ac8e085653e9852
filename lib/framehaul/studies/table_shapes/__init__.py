"""Tables of other shapes, and of few rows: which techniques stay fast, and from how many rows on."""
