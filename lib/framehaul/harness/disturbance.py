"""Passes during which others had the machine: they are made again, and it is counted how many."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.15
"""How much of the cores others may have during a pass. One that needs all cores takes about as much longer; less than
this goes by in what passes leave idle, and is what a system always does, such as writing to the disk for the server."""
LEAST_S = 0.04
"""CPU seconds of others that may be none: what the cores did is counted in ticks of 10 ms, for each kind of work apart.
https://man7.org/linux/man-pages/man5/proc_stat.5.html"""
AGAIN = 2
"""How often a disturbed pass is made again."""
PATIENCE = 10
"""After so many passes in a row that nothing helped, the machine is taken for busy: until a pass goes undisturbed by
itself, none is made again, for a run would take three times as long and tell no more."""


def disturbed(seconds: float, other_cpu_s: float | None, cores: int) -> bool:
    """Whether others had more of so many cores than a pass of `seconds` can bear; the unknown does not disturb."""
    return other_cpu_s is not None and other_cpu_s > max(SHARE * seconds * cores, LEAST_S)


@dataclass
class Disturbance:
    """Counts the passes of a run by what became of them."""

    watched: int = 0
    """Of which it is known what others did."""
    repeated: int = 0
    """Made again, once or more."""
    kept: int = 0
    """Of which even the least disturbed one was disturbed."""
    not_repeated: int = 0
    """Of them, not made again because many before had been in vain."""
    _in_vain: int = 0

    def again(self, made: int) -> bool:
        """Whether a pass is made again, of which `made` so far were all disturbed."""
        return made <= AGAIN and self._in_vain < PATIENCE

    def took(self, *, made: int, kept: bool) -> None:
        """A pass is over: how often it was `made`, and whether a disturbed one was kept."""
        self.watched += 1
        self.repeated += made > 1
        self.kept += kept
        self.not_repeated += kept and made == 1
        self._in_vain = self._in_vain + 1 if kept else 0

    @property
    def counts(self) -> dict[str, int]:
        """For a run's metadata."""
        return {
            "watched": self.watched, "repeated": self.repeated, "kept": self.kept, "not_repeated": self.not_repeated,
        }  # fmt: skip
