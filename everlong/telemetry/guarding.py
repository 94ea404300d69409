"""What tells of work must not fail it: a team's processor, sampler or reader may raise anything."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_LOG_SECONDS: Final = 60.0
_logged_at = float("-inf")


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Log what the body raises, once a minute at most, and go on."""
    global _logged_at
    try:
        yield
    except Exception:  # noqa: BLE001 - it is logged, and is not our code
        if time.monotonic() - _logged_at >= _LOG_SECONDS:
            _logged_at = time.monotonic()
            _LOG.exception("spans or metrics are lost: what takes them raised an error")
