"""One room for each notebook, of the same name."""
