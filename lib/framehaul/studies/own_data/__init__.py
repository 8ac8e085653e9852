"""Somebody's own dataframe: read from a file, given a table, moved along every path, with the best path's code."""
