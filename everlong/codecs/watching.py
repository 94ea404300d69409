"""What the codec tells of its work: a span for each payload that goes to the store, and a log."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span
from temporalio import activity

from everlong.codecs.budget import BUDGET
from everlong.codecs.offload import OffloadStats
from everlong.storage.counting import READS, Reads
from everlong.telemetry import Spans
from everlong.telemetry.spans import OFFLOAD, RUN, THREAD, Attributes

logger = logging.getLogger(__name__)

_FALLBACK_LOG_SECONDS: Final = 60.0


@contextlib.contextmanager
def timed(refs: int, held: int) -> Iterator[None]:
    """Count what payloads that lie in the store take to decode, and those by which a run drains.

    The worker's task that decodes a workflow's first payloads is the one that then makes the workflow
    instance: that finds here what it took.
    """
    if not held:
        yield
        return
    reads = READS.get()
    if reads is None:
        READS.set(reads := Reads())
    reads.held += held
    if not refs:
        yield
        return
    started = time.monotonic()
    try:
        yield
    finally:
        reads.blobs += refs
        reads.seconds += time.monotonic() - started


@contextlib.contextmanager
def offloading(spans: Spans, workflow_id: str, size_bytes: int) -> Iterator[Span]:
    """Emit a span for a payload that goes to the store: in whoever's span this is, or in the run's."""
    run_id = _run_id()
    attributes: Attributes = {
        "everlong.offload.payload_bytes": size_bytes,
        **({THREAD: workflow_id} if workflow_id else {}),
        **({RUN: run_id} if run_id else {}),
    }
    current = trace.get_current_span().get_span_context()
    span = spans.start(OFFLOAD, attributes, run_id=run_id, parent=current)
    with spans.current(span):
        yield span


def _run_id() -> str:
    """Return the run whose payload is encoded, where that can be told."""
    budget = BUDGET.get()
    if budget is not None:
        return budget.run_id
    return (activity.info().workflow_run_id or "") if activity.in_activity() else ""


class FallbackLog:
    """Tells of payloads that stayed inline, once a minute at most."""

    def __init__(self) -> None:
        self._logged_at = float("-inf")

    def note(self, stats: OffloadStats) -> None:
        """Tell of what stayed inline, unless that was just done."""
        if time.monotonic() - self._logged_at < _FALLBACK_LOG_SECONDS:
            return
        self._logged_at = time.monotonic()
        logger.warning(
            "the blob store is down: %d payloads (%d bytes) so far were kept in history instead. "
            "Check the store: history is bounded at 50 MB.",
            stats.fallbacks,
            stats.fallback_bytes,
        )
