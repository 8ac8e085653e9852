"""What happens on each path when something breaks on the way."""
