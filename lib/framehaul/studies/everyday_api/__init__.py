"""What people call without a choice, what one changes to get the fast one, and whether batches keep memory bounded."""
