"""Queries: SQL over journals and archives, read-only and within bounds.

`engine` needs DuckDB, which comes with an extra: whoever runs a query imports it then.
"""

from everlong.queries.library import LIBRARY, NamedQuery
from everlong.queries.results import Bounds, Needs, Table

__all__ = ["LIBRARY", "Bounds", "NamedQuery", "Needs", "Table"]
