"""Sizes of tests: the suite takes the short one, `make test-full` the full one."""

import os

IS_FULL = os.environ.get("EVERLONG_FULL_TESTS") == "1"


def scaled(short: int, full: int) -> int:
    """Return how many steps or examples a test takes."""
    return full if IS_FULL else short
