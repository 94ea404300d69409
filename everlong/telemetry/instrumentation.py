"""Instrumentation scope of all spans and metrics, and the guard around a user's exporters."""

import contextlib
import functools
import logging
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Final

NAME: Final = "everlong"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
"""Version of the semantic conventions that our attribute names follow, GenAI included."""


@functools.cache
def scope_version() -> str:
    """Return the version of the installed package; empty if it is not installed."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return ""


_LOG: Final = logging.getLogger(__name__)
_LOG_SECONDS: Final = 60.0
_logged_at = float("-inf")


@contextlib.contextmanager
def log_errors() -> Iterator[None]:
    """Log errors of the body, at most one a minute, and continue.

    A user's span processor, sampler or metric reader may raise anything. It must not fail the step.
    """
    global _logged_at
    try:
        yield
    except Exception:  # noqa: BLE001 - it is logged, and is not our code
        if time.monotonic() - _logged_at >= _LOG_SECONDS:
            _logged_at = time.monotonic()
            _LOG.exception(
                "spans or metrics were lost: a span processor, sampler or metric reader raised an error"
            )
