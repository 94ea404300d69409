"""Benchmarks of Everlong, each beside what it is compared with, in the same run (docs/benchmarks.md)."""
