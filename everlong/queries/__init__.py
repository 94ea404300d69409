"""Queries: SQL over journals and archives, read-only and within bounds.

`view_files` needs pyarrow, and the sandbox process needs DuckDB. Both come with an extra, so they are
imported when a query runs.
"""

from everlong.queries.engine import Bounds, Table
from everlong.queries.views import LIBRARY, NamedQuery, Needs

__all__ = ["LIBRARY", "Bounds", "NamedQuery", "Needs", "Table"]
