"""The runs that are committed beside the code: the writeup shows them."""

from __future__ import annotations

from framehaul.settings import PROJECT

RUN = PROJECT / "results"
"""Of `make all`, as it runs when nothing is said."""
LARGER_RUN = PROJECT / "reference" / "1000000" / "results"
LARGEST_RUN = PROJECT / "reference" / "10000000" / "results"
"""Of what is about memory: how cost grows with rows, and reads in batches."""
