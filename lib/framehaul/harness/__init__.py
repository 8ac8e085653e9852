"""The only clock: rounds, what a pass costs, its verification, and the record of a run."""
