"""Benchmarks. Each measures Everlong and its baseline in the same run (docs/benchmarks.md)."""
