"""Tables, the rows that are made for them, and conversions between frames."""
