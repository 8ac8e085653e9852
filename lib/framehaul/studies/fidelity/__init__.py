"""What each path does to data: a matrix of techniques by edge cases."""
