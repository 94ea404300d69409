"""Sizes of tests: short in `make test`, full in `make test-full`."""

import os

IS_FULL = os.environ.get("EVERLONG_FULL_TESTS") == "1"


def scaled(short: int, full: int) -> int:
    """Return the number of steps, kills or examples of a test."""
    return full if IS_FULL else short
