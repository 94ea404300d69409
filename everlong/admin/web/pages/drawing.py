"""The charts of a thread: its size over time and per step, and its resumes."""

import dataclasses

from everlong.admin.service.series import Point, Series
from everlong.admin.web.pages import words
from everlong.admin.web.pages.charts import Chart, Sample, chart


@dataclasses.dataclass(frozen=True)
class ThreadCharts:
    """What is drawn of a thread; None where there is too little."""

    time: Chart | None = None
    step: Chart | None = None
    resumes: Chart | None = None


def charts_of(series: Series | None) -> ThreadCharts:
    """Return the charts of what was sampled."""
    if series is None:
        return ThreadCharts()
    return ThreadCharts(
        time=chart(
            [_by_time(point) for point in series.points], is_time=True, y_label=words.axis_size
        ),
        step=chart([_by_step(point) for point in series.points], y_label=words.axis_size),
        resumes=chart(
            [_resume(number, point) for number, point in enumerate(series.resumes, 1)],
            y_label=words.took_or_zero,
            binary=False,
            bars=True,
        ),
    )


def _by_time(point: Point) -> Sample:
    stored = words.size(point.stored_bytes)
    row = (stored, words.size(point.context_bytes))
    return Sample(point.time_ms, point.stored_bytes, stored, row, ms=point.time_ms)


def _by_step(point: Point) -> Sample:
    stored, context = words.size(point.stored_bytes), words.size(point.context_bytes)
    text = f"step {point.step}: {stored} stored, {context} context"
    row = (words.number(point.step), stored, context)
    return Sample(point.step, point.stored_bytes, text, row, second=point.context_bytes)


def _resume(number: int, point: Point) -> Sample:
    took = words.took(point.resume_ms)
    cause = f", {point.resume_cause}" if point.resume_cause else ""
    text = f"{took} for {point.resume_events} events{cause}"
    row = (took, words.number(point.resume_events))
    return Sample(number, point.resume_ms, text, row, ms=point.time_ms)
