"""What was measured: files, statistics, and the comparison of two runs."""
