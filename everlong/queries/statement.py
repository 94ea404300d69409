"""Statement check: decides from a parsed statement whether it may run, and which tables it reads.

A statement is one SELECT. Each table in it is one of our views or a CTE in scope; each function, type
and kind of expression is on an allowlist. Every unknown node is rejected, so a new feature of DuckDB's
grammar cannot escape the sandbox.

The module runs inside the sandbox process: a parse tree may be large and deep.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

from everlong.errors import QueryRefused
from everlong.queries.functions import FUNCTIONS, TABLE_FUNCTIONS, TYPES, VALUE_NAMES
from everlong.queries.views import MESSAGES, NAMES, Needs

TOO_COMPLEX: Final = "the statement takes too much time or memory to parse; make it simpler"
_ERROR_CHARS_MAX: Final = 300
_DOCUMENTED: Final = "docs/queries.md lists what can be used"
_EXPRESSIONS: Final = frozenset(
    [
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    ]
)
# Query nodes, table references, modifiers, and the ways to order.
_OTHERS: Final = frozenset(
    [
        "SELECT_NODE",
        "SET_OPERATION_NODE",
        "RECURSIVE_CTE_NODE",
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "PIVOT",
        "SUBQUERY",
        "TABLE_FUNCTION",
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "ORDER_MODIFIER",
        "ASCENDING",
        "DESCENDING",
        "ORDER_DEFAULT",
    ]
)
_Node = dict[str, Any]
_Scope = frozenset[str]


@dataclasses.dataclass
class _Walk:
    """Nodes and views that a walk through the tree found."""

    nodes: list[_Node] = dataclasses.field(default_factory=list)
    views: list[_Node] = dataclasses.field(default_factory=list)
    """Table references to our views, without CTEs."""


def read_needs(tree: Any) -> Needs:
    """Return the tables that a parsed statement reads, or raise `QueryRefused`."""
    if tree.get("error"):
        raise QueryRefused(_parse_failure(str(tree.get("error_message", ""))))
    statements = tree["statements"]
    if len(statements) != 1:
        raise QueryRefused("give one statement: one SELECT, without others after it")
    walk = _Walk()
    waiting: list[tuple[Any, _Scope]] = [(statements[0], frozenset())]
    while waiting:
        value, scope = waiting.pop()
        if isinstance(value, list):
            waiting.extend((each, scope) for each in value)
        elif isinstance(value, dict):
            waiting.extend(_visit(value, scope, walk))
    names = {_fold_case(node["table_name"]) for node in walk.views}
    base = {"entries" if each == "resumes" else each for each in names}
    return Needs(frozenset(base), _names_messages(walk))


def _parse_failure(text: str) -> str:
    if text.startswith("Only SELECT"):
        return "only a SELECT can be run"
    if text.startswith(("Failed to allocate", "Allocation failure")):
        return TOO_COMPLEX
    return f"the statement cannot be parsed: {text[:_ERROR_CHARS_MAX]}"


def _fold_case(name: object) -> str:
    """Return a name as DuckDB compares it: without case, in ASCII only.

    `str.lower` would take the Kelvin sign for a `k`, so a CTE could pass for a table that it is not.
    """
    return "".join(each.lower() if each.isascii() else each for each in str(name))


def _visit(node: _Node, scope: _Scope, walk: _Walk) -> Iterator[tuple[Any, _Scope]]:
    """Check one node; yield its children, each with the CTEs in its scope."""
    walk.nodes.append(node)
    _check_kind(node)
    rest = dict(node)
    if node.get("type") == "BASE_TABLE" and _is_view(node, scope):
        walk.views.append(node)
    if node.get("type") == "TABLE_FUNCTION":
        function = rest.pop("function")
        _check_function(function, TABLE_FUNCTIONS, "after FROM")
        walk.nodes.append(function)
        yield from ((each, scope) for each in function.values())
    # A CTE sees the CTEs before it, and itself only if it is recursive; the query below sees all.
    ctes = dict(rest.pop("cte_map", None) or {})
    for cte in ctes.pop("map", ()):
        yield cte, scope
        scope |= {_fold_case(cte["key"])}
    yield from ((each, scope) for each in ctes.values())
    if node.get("type") == "RECURSIVE_CTE_NODE":
        yield rest.pop("right"), scope | {_fold_case(node["cte_name"])}
    yield from ((each, scope) for each in rest.values())


def _check_kind(node: _Node) -> None:
    kind, other = node.get("class"), node.get("type")
    if kind is None:
        if isinstance(other, str) and other not in _OTHERS and not other.endswith("_TYPE_INFO"):
            raise QueryRefused(_refusal_of(other))
    elif kind not in _EXPRESSIONS:
        raise QueryRefused(f"{_words(kind)} cannot be used in a query; {_DOCUMENTED}")
    elif kind in ("FUNCTION", "WINDOW"):
        _check_function(node, FUNCTIONS, "in a query")
    elif kind == "TYPE":
        _check_type(node)
    elif kind == "COLUMN_REF":
        _check_column(node)


def _refusal_of(other: str) -> str:
    if other.endswith("_NODE"):
        return "only a SELECT can be run, also inside of one"
    if other == "SHOW_REF":
        return (
            "SHOW, DESCRIBE and SUMMARIZE cannot be used in a query; docs/queries.md has the views"
        )
    return f"{_words(other)} cannot be used in a query; {_DOCUMENTED}"


def _words(kind: object) -> str:
    return str(kind).replace("_", " ").lower()


def _path_of(node: _Node) -> list[str]:
    return [str(each) for each in (node.get("qualified_name") or {}).get("path") or ()]


def _check_function(node: _Node, allowed: frozenset[str], where: str) -> None:
    # The name may follow a schema or, as in `text.upper()`, a column. A function is safe in any schema.
    names = [_fold_case(node.get("function_name", "")), *map(_fold_case, _path_of(node)[-1:])]
    for name in names:
        if name not in allowed:
            raise QueryRefused(f"the function {name[:60]!r} cannot be used {where}; {_DOCUMENTED}")


def _check_type(node: _Node) -> None:
    path = _path_of(node)
    for name in (_fold_case(node.get("type_name", "")), *map(_fold_case, path[-1:])):
        if name not in TYPES or len(path) > 1:
            raise QueryRefused(f"the type {name[:60]!r} cannot be used in a query; {_DOCUMENTED}")


def _check_column(node: _Node) -> None:
    path = [_fold_case(each) for each in node.get("column_names") or ()]
    if len(path) == 1 and path[0] in VALUE_NAMES:
        raise QueryRefused(
            f"{path[0]!r} cannot be used in a query: it is a function. If it is a column, name its "
            f"table too, as in t.{path[0]}; {_DOCUMENTED}"
        )


def _is_view(node: _Node, scope: _Scope) -> bool:
    """Return whether a table is a view and not a CTE in scope; reject other tables and file names."""
    path = _path_of(node)
    if len(path) != 1 or node.get("schema_name") or node.get("catalog_name"):
        raise QueryRefused(f"name views without a schema: {', '.join(sorted(NAMES))}")
    name = _fold_case(node["table_name"])
    if name != _fold_case(path[0]):
        raise QueryRefused(f"the table {name[:60]!r} has two names; {_DOCUMENTED}")
    if name in scope:
        return False
    if name not in NAMES:
        raise QueryRefused(f"no view is named {name[:60]!r}; the views: {', '.join(sorted(NAMES))}")
    return True


def _names_messages(walk: _Walk) -> bool:
    """Return whether a statement names columns of messages, or whole rows of entries."""
    read = [node for node in walk.views if _fold_case(node["table_name"]) == "entries"]
    if not read:
        return False
    # Column aliases go by position, which depends on the columns that are loaded.
    if any(node.get("column_name_alias") for node in read):
        return True
    rows = {_fold_case(node.get("alias") or "entries") for node in read}
    by_all = {id(star) for node in walk.nodes for star in _stars_of_order_by_all(node)}
    return any(_names_whole(node, rows) for node in walk.nodes if id(node) not in by_all)


def _names_whole(node: _Node, rows: set[str]) -> bool:
    """Return whether a node names a column of messages or all columns, as an alias in `rows` does."""
    # A positional reference depends on the columns that are loaded, and a star names all.
    if node.get("class") in ("STAR", "POSITIONAL_REFERENCE"):
        return True
    # These use all columns without naming them.
    if node.get("type") == "PIVOT" or node.get("ref_type") == "NATURAL":
        return True
    path = _columns_of(node)
    if path and path[-1] in rows:
        return True
    joined = [_fold_case(name) for name in node.get("using_columns") or ()]
    return not {*path, *joined}.isdisjoint(MESSAGES)


def _columns_of(node: _Node) -> Sequence[str]:
    if node.get("class") == "FUNCTION":
        return [_fold_case(name) for name in _path_of(node)[:-1]]  # As in `text.upper()`.
    return [_fold_case(name) for name in node.get("column_names") or ()]


def _stars_of_order_by_all(node: _Node) -> list[_Node]:
    """Return the stars of `order by all`: they stand for the selected columns."""
    stars = [each.get("expression") or {} for each in node.get("orders") or ()]
    return [star for star in stars if star.get("columns") and star.get("expr") is None]
