"""One change at a time: pairs of techniques that differ in nothing else."""
