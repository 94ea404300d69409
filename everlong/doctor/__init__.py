"""Checks of a setup, for `everlong doctor` and `everlong drain`."""
