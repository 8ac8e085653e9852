"""All passes of a run in one frame; the notebook holds its own code."""
