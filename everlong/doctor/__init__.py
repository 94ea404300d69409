"""Checks of a setup: what `everlong doctor` and `everlong drain` find out."""
