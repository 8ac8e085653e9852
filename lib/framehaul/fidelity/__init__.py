"""What each path does to data: a matrix of techniques by awkward values."""

from framehaul.fidelity.cases import CASES, Case
from framehaul.fidelity.matrix import Matrix, load, readme_text, run

__all__ = ["CASES", "Case", "Matrix", "load", "readme_text", "run"]
