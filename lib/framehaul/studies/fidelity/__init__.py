"""What each path does to data: a matrix of techniques by awkward values."""

from framehaul.studies.fidelity.cases import CASES, Case
from framehaul.studies.fidelity.study import Matrix, load, readme_text, run

__all__ = ["CASES", "Case", "Matrix", "load", "readme_text", "run"]
