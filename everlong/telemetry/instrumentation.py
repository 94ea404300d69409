"""Instrumentation scope: the name, version and schema that all our spans and metrics carry."""

import contextlib
import functools
import logging
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Final

NAME: Final = "everlong"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
"""Version of the semantic conventions whose attribute names are used, those of GenAI included."""


@functools.cache
def scope_version() -> str:
    """Return the version of the installed package; empty where it is not installed."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return ""


# What tells of work must not fail it: a team's processor, sampler or reader may raise anything.
_LOG: Final = logging.getLogger(__name__)
_LOG_SECONDS: Final = 60.0
_logged_at = float("-inf")


@contextlib.contextmanager
def log_errors() -> Iterator[None]:
    """Log what the body raises, once a minute at most, and go on."""
    global _logged_at
    try:
        yield
    except Exception:  # noqa: BLE001 - it is logged, and is not our code
        if time.monotonic() - _logged_at >= _LOG_SECONDS:
            _logged_at = time.monotonic()
            _LOG.exception("spans or metrics are lost: what takes them raised an error")
