"""The results of a study, ready to be shown: one kind of handle for all notebooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Self

import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.figure import Figure

from framehaul.bench import store
from framehaul.bench.study import Study, imported
from framehaul.reporting import charts
from framehaul.reporting.tables import Listing
from framehaul.reporting.versions import size_text, versions_text
from framehaul.settings import Settings, load_settings


class Shown:
    """The passes, or the cells, of a study's last complete run; each study adds its views of them."""

    study: ClassVar[Study]

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes, self.metadata, self.figures = passes, metadata, figures

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """From the files of the last complete run, without any server; raises ResultsError when there is none."""
        settings = settings or load_settings()
        directory = settings.out / "results"
        path, rows = directory / cls.study.results, cls.study.rows
        passes = store.read(path, imported(rows)) if rows else store.read_cells(path)
        return cls(passes, store.read_metadata(directory), settings.out / "figures")

    @property
    def notebook(self) -> str:
        """Whose run it is: of a study that has none of its own, and only reads, the first of those that it reads."""
        return min(self.metadata["runs"]) if self.study.only_reads else self.study.notebook

    @property
    def run_metadata(self) -> dict[str, Any]:
        """What is known of the run."""
        run_metadata: dict[str, Any] = self.metadata["runs"][self.notebook]
        return run_metadata

    @property
    def machine_cores(self) -> int | None:
        """Of the machine of the run, where they are known."""
        cores: int | None = self.metadata.get("machine", {}).get("cores")
        return cores

    def answer(self) -> Markdown | Listing:
        """What the run answers to the study's question, in a few points or a table."""
        raise NotImplementedError

    def answered(self) -> str:
        """The same with the run that it is of, as Markdown."""
        run, cores = self.run_metadata, f", {self.machine_cores} cores" if self.machine_cores else ""
        answer = self.answer()
        text = answer.data if isinstance(answer, Markdown) else answer
        return f"Answer of the run of {run['started'].split()[0]} ({size_text(run)}{cores}):\n\n{text}"

    def versions(self) -> Markdown:
        """What this was run with, and what could not be."""
        return Markdown(versions_text(self.metadata, self.notebook))

    def saved(self, figure: Figure, which: str = "") -> SVG:
        """A figure, also saved as `figures/<study>[_<which>].svg`."""
        name = f"{self.study.name}_{which}" if which else self.study.name
        svg = charts.save(figure, self.figures / f"{name}.svg")
        called = charts.described(figure) or f"{self.study.question} {name.replace('_', ' ')}"
        return SVG(svg, metadata={"alt": called})


def view[**P](
    of: Callable[Concatenate[pl.DataFrame, P], Any], of_frame: str = "passes"
) -> Callable[Concatenate[Any, P], Any]:
    """A method of a `Shown` that gives what a function makes of its passes: text is shown as Markdown.

    `of_frame` is the attribute that the function takes, where it is not the passes.
    """

    def method(shown: Shown, /, *arguments: P.args, **named: P.kwargs) -> Any:
        content = of(getattr(shown, of_frame), *arguments, **named)
        return Markdown(content) if isinstance(content, str) else content

    method.__doc__ = of.__doc__
    return method


def chart[**P](
    of: Callable[Concatenate[pl.DataFrame, P], Figure], which: str = "", of_frame: str = "passes"
) -> Callable[Concatenate[Any, P], SVG]:
    """A method of a `Shown` that shows the figure a function draws of its passes, and saves it, as `Shown.saved`."""

    def method(shown: Shown, /, *arguments: P.args, **named: P.kwargs) -> SVG:
        return shown.saved(of(getattr(shown, of_frame), *arguments, **named), which)

    method.__doc__ = of.__doc__
    return method
