"""Reports of figures: tables for people, Markdown and JSON. Only figures with a bound can fail."""

import dataclasses
import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Cell = str | int | float | None

_COLUMNS = ("what", "measured", "unit", "bound", "")
# Wide enough for the tables, also where the output goes to a file.
_out = Console(highlight=False, emoji=False, width=128)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The allowed range of a figure: from `least` to `most`, either of which may be open."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value is within the bound."""
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.least == self.most:
            return f"= {_format_number(self.most)}"
        if self.most is None:
            return f">= {_format_number(self.least)}"
        if self.least is None:
            return f"<= {_format_number(self.most)}"
        return f"{_format_number(self.least)} to {_format_number(self.most)}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured value. None means that the measurement did not finish; its bound fails."""

    what: str
    value: float | None
    unit: str = ""
    bound: Bound | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the bound holds, if there is one."""
        if self.bound is None:
            return None
        return self.value is not None and self.bound.holds(self.value)

    @property
    def verdict(self) -> str:
        """The word for people."""
        return {None: "", True: "ok", False: "FAIL"}[self.ok]


@dataclasses.dataclass(frozen=True)
class Series:
    """A table of measured values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclasses.dataclass
class Report:
    """The figures of one part of the benchmark."""

    title: str
    figures: list[Figure] = dataclasses.field(default_factory=list)
    series: list[Series] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(
        self,
        what: str,
        value: float | None,
        unit: str = "",
        *,
        least: float | None = None,
        most: float | None = None,
    ) -> None:
        """Add a figure, with its bound if it has one."""
        judged = least is not None or most is not None
        self.figures.append(Figure(what, value, unit, Bound(least, most) if judged else None))

    @property
    def failed(self) -> list[Figure]:
        """The figures outside their bounds."""
        return [figure for figure in self.figures if figure.ok is False]

    def show(self) -> None:
        """Print the report."""
        for series in self.series:
            _out.print(_build_table(series.title, series.columns, series.rows))
        if self.figures:
            _out.print(_build_table(self.title, _COLUMNS, self._rows()))
        for note in self.notes:
            _out.print(f"- {note}")

    def as_markdown(self) -> str:
        """Return the report as Markdown, for docs/benchmarks.md."""
        parts = [
            _format_markdown(series.title, series.columns, series.rows) for series in self.series
        ]
        if self.figures:
            parts.append(_format_markdown(self.title, _COLUMNS, self._rows()))
        return "\n".join([*parts, *(f"- {note}" for note in self.notes), ""])

    def _rows(self) -> list[tuple[Cell, ...]]:
        return [
            (figure.what, figure.value, figure.unit, str(figure.bound or ""), figure.verdict)
            for figure in self.figures
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "title": self.title,
            "figures": [
                {
                    "what": figure.what,
                    "value": figure.value,
                    "unit": figure.unit,
                    "bound": dataclasses.asdict(figure.bound) if figure.bound else None,
                    "ok": figure.ok,
                }
                for figure in self.figures
            ],
            "series": [dataclasses.asdict(series) for series in self.series],
            "notes": self.notes,
        }


def machine() -> dict[str, Cell]:
    """Return the machine that the figures depend on. Call it before the run, which adds load."""
    versions = {name: metadata.version(name) for name in ("everlong", "temporalio", "zstandard")}
    return {
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **versions,
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def finish(
    about: Mapping[str, Cell],
    reports: Sequence[Report],
    json_file: Path | None = None,
    markdown_file: Path | None = None,
) -> int:
    """Print the reports, and write them to the given files; return the exit code."""
    on = ", ".join(f"{name} {value}" for name, value in about.items())
    _out.print(on)
    for report in reports:
        report.show()
    if json_file is not None:
        content = {"machine": dict(about), "reports": [report.as_json() for report in reports]}
        json_file.write_text(json.dumps(content, indent=2) + "\n")
    if markdown_file is not None:
        markdown_file.write_text("\n".join([on, "", *(each.as_markdown() for each in reports)]))
    failed = [figure.what for report in reports for figure in report.failed]
    judged = sum(figure.ok is not None for report in reports for figure in report.figures)
    _out.print(f"{judged - len(failed)} of {judged} bounds hold")
    for what in failed:
        _out.print(f"FAIL {what}")
    return 1 if failed else 0


def _build_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    view = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        view.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        view.add_row(*(cell if isinstance(cell, str) else _format_number(cell) for cell in row))
    return view


def _format_markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    lines = [list(columns), ["---", *("---:" for _ in columns[1:])]]
    lines += [
        [cell if isinstance(cell, str) else _format_number(cell) for cell in row] for row in rows
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{title}**\n\n{table}\n"


def _format_number(value: float | None) -> str:
    """Return a number rounded to its significant digits."""
    if value is None:
        return "-"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
