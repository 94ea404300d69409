"""Checks of the package itself: what it installs with, from which versions on, and from a wheel.

They need nothing but Python, and uv where they say so. The Makefile runs them.
"""
