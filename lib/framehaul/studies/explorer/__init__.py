"""The explorer has no code here: its notebook shows all passes of a run in one frame."""
