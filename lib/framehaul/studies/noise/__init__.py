"""What the figures of this harness are worth: one technique under two names, and speed with memory warm and cold."""
