"""The first agent of the README."""
