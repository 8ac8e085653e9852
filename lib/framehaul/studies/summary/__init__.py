"""The four directions beside each other, and beside what was published."""
