"""Checks of the package: lowest dependency versions, neighbours that it installs with, the built wheel.

They need only Python, and some of them uv. The Makefile runs them.
"""
