"""Charts: geometry of lines, bars and ticks, which templates draw as inline SVG.

All sizes are SVG attributes: the pages' content security policy forbids style attributes.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final

from everlong import limits
from everlong.admin.series import Point as SeriesPoint
from everlong.admin.series import Series
from everlong.admin.web.pages import filters
from everlong.admin.web.pages.filters import Label

# In units of the SVG's view box, which is scaled to the page.
WIDTH: Final = 560
HEIGHT: Final = 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 12, 12, 28
_TICKS: Final = 4
# Fewer, since some locales write times with AM and PM.
_TIME_TICKS: Final = 3


@dataclasses.dataclass(frozen=True)
class Tick:
    """A grid line and its label."""

    at: float
    label: str
    ms: float | None = None
    """Time in ms on a time axis. A script then localises the label."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A measured value: position and text."""

    x: float
    y: float
    text: str
    row: tuple[str, ...]
    """The value as table cells."""
    ms: float | None
    """Time of the measurement in ms, where the text shows it."""


@dataclasses.dataclass(frozen=True)
class Spark:
    """A line without axes."""

    line: str
    area: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A line over an area, or bars, with axes."""

    points: tuple[Point, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    line: str
    area: str
    second: str = ""
    """Path of a second line on the same scale."""
    bar_width: float = 0.0
    """Width of the bars; 0 for a line."""
    time_form: str = ""
    """Precision of the axis times: `date`, `day`, `minute` or `second`."""
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    floor: float = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


@dataclasses.dataclass(frozen=True)
class Sample:
    """A value to draw, with its text and table cells."""

    x: float
    y: float
    text: str
    row: tuple[str, ...]
    second: float | None = None
    ms: float | None = None


def build_spark(
    trend: Sequence[tuple[int, int]], width: int = 84, height: int = 22
) -> Spark | None:
    """Return a sparkline of (time, value) pairs; None for fewer than two."""
    if len(trend) < 2:
        return None
    first, last = trend[0][0], trend[-1][0]
    low, high = min(value for _, value in trend), max(value for _, value in trend)
    x_span, y_span = max(1, last - first), max(1, high - low)
    places = [
        (width * (ms - first) / x_span, height - 1.5 - (height - 3) * (value - low) / y_span)
        for ms, value in trend
    ]
    line = _build_path(places)
    return Spark(line, f"{line}L{width:g} {height:g}L0 {height:g}Z")


def build_chart(
    samples: Sequence[Sample],
    *,
    y_label: Label,
    is_time: bool = False,
    binary: bool = True,
    bars: bool = False,
) -> Chart | None:
    """Return a chart whose y axis begins at 0; None for too few samples.

    The x axis has times or whole numbers.
    """
    if len(samples) < (1 if bars else 2):
        return None
    x_low, x_high = min(s.x for s in samples), max(s.x for s in samples)
    tops = [s.y for s in samples] + [s.second for s in samples if s.second is not None]
    steps = choose_ticks(max(tops), binary=binary)
    y_high = steps[-1]
    inner = WIDTH - _LEFT - _RIGHT
    bar_width = max(1.5, min(18.0, inner / len(samples) * 0.7)) if bars else 0.0
    span = inner - bar_width

    def x_at(value: float) -> float:
        share = (value - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return round(_LEFT + bar_width / 2 + span * share, 2)

    def y_at(value: float) -> float:
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / y_high, 2)

    places = [(x_at(s.x), y_at(s.y)) for s in samples]
    line = _build_path(places)
    seconds = [(x_at(s.x), y_at(s.second)) for s in samples if s.second is not None]
    floor = HEIGHT - _BOTTOM
    return Chart(
        points=tuple(
            Point(x, y, sample.text, sample.row, sample.ms)
            for (x, y), sample in zip(places, samples, strict=True)
        ),
        x_ticks=_build_time_ticks(x_low, x_high, x_at)
        if is_time
        else _build_whole_ticks(x_low, x_high, x_at),
        y_ticks=tuple(Tick(y_at(value), y_label(value)) for value in steps),
        line=line,
        area=f"{line}L{places[-1][0]:g} {floor}L{places[0][0]:g} {floor}Z",
        second=_build_path(seconds) if len(seconds) > 1 else "",
        bar_width=bar_width,
        time_form=filters.choose_time_form(x_high - x_low) if is_time else "",
    )


def choose_ticks(high: float, *, binary: bool) -> list[float]:
    """Return round numbers from 0 to at least `high`. Binary ones are round in KiB or MiB."""
    unit = 1.0
    while binary and high / unit >= limits.KIB:
        unit *= limits.KIB
    step = _round_up(max(high / unit, 1e-9) / _TICKS) * unit
    if binary:
        step = max(1.0, step)
    count = max(1, math.ceil(high / step - 1e-9))
    return [step * number for number in range(count + 1)]


def _round_up(step: float) -> float:
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * mantissa for mantissa in (1, 2, 2.5, 5, 10) if scale * mantissa >= step)


def _spread_evenly(low: float, high: float, parts: int) -> list[float]:
    if high <= low:
        return [low]
    return [low + (high - low) * number / parts for number in range(parts + 1)]


def _build_time_ticks(low: float, high: float, at: Callable[[float], float]) -> tuple[Tick, ...]:
    found = [
        Tick(at(ms), filters.format_axis_time(ms, high - low), round(ms))
        for ms in _spread_evenly(low, high, _TIME_TICKS)
    ]
    # On a short axis several ticks would have the same label.
    return tuple({tick.label: tick for tick in reversed(found)}.values())[::-1]


def _build_whole_ticks(low: float, high: float, at: Callable[[float], float]) -> tuple[Tick, ...]:
    """Return ticks at whole numbers only."""
    values = sorted({round(value) for value in _spread_evenly(low, high, _TICKS)})
    return tuple(Tick(at(value), filters.format_number(value)) for value in values)


def _build_path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places)


@dataclasses.dataclass(frozen=True)
class ThreadCharts:
    """Charts of a thread: size over time and per step, and resumes; None for too few samples."""

    time: Chart | None = None
    step: Chart | None = None
    resumes: Chart | None = None


def build_thread_charts(series: Series | None) -> ThreadCharts:
    """Return the charts of a thread's series."""
    if series is None:
        return ThreadCharts()
    return ThreadCharts(
        time=build_chart(
            [_sample_by_time(point) for point in series.points],
            is_time=True,
            y_label=filters.format_axis_size,
        ),
        step=build_chart(
            [_sample_by_step(point) for point in series.points], y_label=filters.format_axis_size
        ),
        resumes=build_chart(
            [_sample_resume(number, point) for number, point in enumerate(series.resumes, 1)],
            y_label=filters.format_axis_ms,
            binary=False,
            bars=True,
        ),
    )


def _sample_by_time(point: SeriesPoint) -> Sample:
    stored = filters.format_size(point.stored_bytes)
    row = (stored, filters.format_size(point.context_bytes))
    return Sample(point.time_ms, point.stored_bytes, stored, row, ms=point.time_ms)


def _sample_by_step(point: SeriesPoint) -> Sample:
    stored, context = (
        filters.format_size(point.stored_bytes),
        filters.format_size(point.context_bytes),
    )
    text = f"step {point.step}: {stored} stored, {context} context"
    row = (filters.format_number(point.step), stored, context)
    return Sample(point.step, point.stored_bytes, text, row, second=point.context_bytes)


def _sample_resume(number: int, point: SeriesPoint) -> Sample:
    took = filters.format_ms(point.resume_ms)
    cause = f", {point.resume_cause}" if point.resume_cause else ""
    text = f"{took} for {point.resume_events} events{cause}"
    row = (took, filters.format_number(point.resume_events))
    return Sample(number, point.resume_ms, text, row, ms=point.time_ms)
