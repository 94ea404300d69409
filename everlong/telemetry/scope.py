"""Instrumentation scope: the name, version and schema that all our spans and metrics carry."""

import functools
from importlib import metadata
from typing import Final

NAME: Final = "everlong"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
"""Version of the semantic conventions whose attribute names are used, those of GenAI included."""


@functools.cache
def scope_version() -> str:
    """Return the version of the installed package; empty where it is not installed."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return ""
