"""Statement check: decides from a parsed statement whether it may run, and which tables it reads.

A statement is one SELECT. Each table in it is one of our views or a CTE in scope; each function, type
and kind of expression is on an allowlist. Every unknown node is rejected, so a new feature of DuckDB's
grammar cannot escape the sandbox.

A function on the allowlist computes a value from its arguments. None of them reads a file, a setting, a
catalog, a variable or the environment, has a side effect, or runs SQL from a text. A function that a
later DuckDB adds is rejected until it is listed here. `docs/how-to/query.md` has the same list.

The module runs inside the sandbox process: a parse tree may be large and deep.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

from everlong.errors import QueryRefused
from everlong.queries.views import MESSAGES, NAMES, Needs

_OPERATORS: Final = """
    + - * / // % ** ^ @ ! !__postfix & && | ~ << >> || ^@ -> ->> <-> <=> <@ @>
    = != < <= > >= ~~ !~~ ~~* !~~* ~~~
"""

SCALAR_GROUPS: Final = {
    "numbers": """
        abs acos acosh add asin asinh atan atan2 atanh binom bit_count cbrt ceil ceiling cos cosh cot
        degrees divide equi_width_bins even exp factorial fdiv floor fmod gamma gcd greatest
        greatest_common_divisor is_histogram_other_bin isfinite isinf isnan lcm least
        least_common_multiple lgamma ln log log10 log2 mod multiply nextafter pi pow power radians
        random round round_even roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
    """,
    "texts": """
        array_extract ascii bar base64 bin bit_length bit_position bitstring char_length
        character_length chr concat concat_ws contains damerau_levenshtein decode editdist3 encode
        ends_with format format_bytes formatreadabledecimalsize formatreadablesize from_base64
        from_binary from_hex get_bit hamming hash hex ilike_escape instr jaccard jaro_similarity
        jaro_winkler_similarity lcase left left_grapheme length length_grapheme levenshtein like_escape
        lower lpad ltrim md5 md5_number md5_number_lower md5_number_upper mismatches nfc_normalize
        not_ilike_escape not_like_escape octet_length ord overlay parse_dirname parse_dirpath
        parse_filename parse_formatted_bytes parse_path position prefix printf regexp_escape
        regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
        regexp_split_to_array regexp_split_to_table repeat replace reverse right right_grapheme rpad
        rtrim set_bit sha1 sha256 split split_part starts_with str_split str_split_regex string_split
        string_split_regex string_to_array strip_accents strlen strpos substr substring
        substring_grapheme suffix to_base to_base64 to_binary to_hex translate trim ucase unbin unhex
        unicode upper url_decode url_encode
    """,
    "times": """
        age ago century current_date current_localtime current_localtimestamp date_add date_diff
        date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname dayofmonth
        dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns epoch_us era get_current_time
        get_current_timestamp hour isodow isoyear julian last_day make_date make_time make_timestamp
        make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute
        month monthname nanosecond normalized_interval now quarter second strftime strptime time_bucket
        timezone timezone_hour timezone_minute to_centuries to_days to_decades to_hours to_microseconds
        to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks
        to_years today transaction_timestamp try_strptime week weekday weekofyear year yearweek
    """,
    "JSON": """
        array_to_json from_json from_json_strict json json_array json_array_length json_contains
        json_deep_merge json_exists json_extract json_extract_path json_extract_path_text
        json_extract_string json_group_array json_group_object json_group_structure json_insert
        json_keys json_merge_patch json_merge_patch_diff json_normalize json_object json_pretty
        json_quote json_remove json_replace json_set json_strip_nulls json_structure json_transform
        json_transform_strict json_type json_valid json_value row_to_json to_json
    """,
    "lists": """
        aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat
        array_contains array_cosine_distance array_cosine_similarity array_cross_product array_distance
        array_distinct array_dot_product array_filter array_grade_up array_has array_has_all
        array_has_any array_indexof array_inner_product array_intersect array_length
        array_negative_dot_product array_negative_inner_product array_pop_back array_pop_front
        array_position array_prepend array_push_back array_push_front array_reduce array_resize
        array_reverse array_reverse_sort array_select array_slice array_sort array_to_string
        array_to_string_comma_default array_transform array_unique array_value array_where array_zip
        filter flatten generate_series generate_subscripts grade_up len list_aggr list_aggregate
        list_any_value list_append list_apply list_approx_count_distinct list_avg list_bit_and
        list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat list_contains
        list_cosine_distance list_cosine_similarity list_count list_distance list_distinct
        list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up
        list_has list_has_all list_has_any list_histogram list_indexof list_inner_product list_intersect
        list_kurtosis list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode
        list_negative_dot_product list_negative_inner_product list_pack list_position list_prepend
        list_product list_reduce list_resize list_reverse list_reverse_sort list_select list_sem
        list_skewness list_slice list_sort list_stddev_pop list_stddev_samp list_string_agg list_sum
        list_transform list_unique list_value list_var_pop list_var_samp list_where list_zip range
        reduce unnest
    """,
    "structs and maps": """
        cardinality element_at map map_concat map_contains map_contains_entry map_contains_value
        map_entries map_extract map_extract_value map_from_entries map_keys map_values row struct_concat
        struct_contains struct_extract struct_extract_at struct_has struct_indexof struct_insert
        struct_keys struct_pack struct_position struct_update struct_values union_extract union_tag
        union_value
    """,
    "conditions, types and ids": """
        alias error gen_random_uuid if nullif typeof uuid uuid_extract_timestamp uuid_extract_version
        uuidv4 uuidv7
    """,
}

AGGREGATE_GROUPS: Final = {
    "aggregates": """
        any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null
        arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and
        bit_or bit_xor bitstring_agg bool_and bool_or corr count count_if count_star countif covar_pop
        covar_samp entropy favg first fsum geomean geometric_mean group_concat histogram histogram_exact
        kahan_sum kurtosis kurtosis_pop last list listagg lttb mad max max_by mean median min min_by
        mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept
        regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop
        stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance wavg weighted_avg
    """,
    "windows": """
        cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank
        rank_dense row_number
    """,
}

TABLE_GROUPS: Final = {
    "tables": "generate_series json_each json_tree range repeat unnest",
}

TYPE_GROUPS: Final = {
    "types": """
        array bigint bignum binary bit bitstring blob bool boolean bpchar bytea char date datetime dec
        decimal double enum float float4 float8 guid hugeint int int1 int128 int16 int2 int32 int4 int64
        int8 integer integral interval json list logical long map null numeric nvarchar real row short
        signed smallint string struct text time time_ns timestamp timestamp_ms timestamp_ns timestamp_s
        timestamp_us timestamptz timestamptz_ns timetz tinyint tuple ubigint uhugeint uint128 uint16
        uint32 uint64 uint8 uinteger union usmallint utinyint uuid varbinary varchar varint
    """,
}

_TWO_WORDS: Final = frozenset({"time with time zone", "timestamp with time zone"})
_GROUPS: Final = (*SCALAR_GROUPS.values(), *AGGREGATE_GROUPS.values())

FUNCTIONS: Final = frozenset(" ".join((_OPERATORS, *_GROUPS)).split())
"""Functions and operators inside expressions, in lower case."""
TABLE_FUNCTIONS: Final = frozenset(" ".join(TABLE_GROUPS.values()).split())
"""Functions after FROM. `histogram` is not listed: there it is a macro that reads any table."""
TYPES: Final = frozenset(" ".join(TYPE_GROUPS.values()).split()) | _TWO_WORDS
"""Types of casts."""
VALUE_NAMES: Final = frozenset(
    {"current_catalog", "current_role", "current_schema", "current_user", "session_user", "user"}
)
"""Names that DuckDB resolves to a function if no column has them. They are not allowed."""

PARSE_SECONDS: Final = 5.0
"""Time to parse and check a statement. The longest ones take 2 s."""
FILL_SECONDS: Final = 120.0
"""Time to load the tables that a statement reads: 316 MB at most, which take 5 s on a quiet machine."""
TOO_COMPLEX: Final = "the statement takes too much time or memory to parse; make it simpler"
_ERROR_CHARS_MAX: Final = 300
_DOCUMENTED: Final = "docs/how-to/query.md lists what can be used"
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


def check_statement(tree: Any) -> Needs:
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
            raise QueryRefused(_describe_refusal(other))
    elif kind not in _EXPRESSIONS:
        raise QueryRefused(f"{_format_kind(kind)} cannot be used in a query; {_DOCUMENTED}")
    elif kind in ("FUNCTION", "WINDOW"):
        _check_function(node, FUNCTIONS, "in a query")
    elif kind == "TYPE":
        _check_type(node)
    elif kind == "COLUMN_REF":
        _check_column(node)


def _describe_refusal(other: str) -> str:
    if other.endswith("_NODE"):
        return "only a SELECT can be run, also inside of one"
    if other == "SHOW_REF":
        return (
            "SHOW, DESCRIBE and SUMMARIZE cannot be used in a query; "
            "docs/how-to/query.md has the views"
        )
    return f"{_format_kind(other)} cannot be used in a query; {_DOCUMENTED}"


def _format_kind(kind: object) -> str:
    return str(kind).replace("_", " ").lower()


def _get_path(node: _Node) -> list[str]:
    return [str(each) for each in (node.get("qualified_name") or {}).get("path") or ()]


def _check_function(node: _Node, allowed: frozenset[str], where: str) -> None:
    # The name may follow a schema or, as in `text.upper()`, a column. A function is safe in any schema.
    names = [_fold_case(node.get("function_name", "")), *map(_fold_case, _get_path(node)[-1:])]
    for name in names:
        if name not in allowed:
            raise QueryRefused(f"the function {name[:60]!r} cannot be used {where}; {_DOCUMENTED}")


def _check_type(node: _Node) -> None:
    path = _get_path(node)
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
    path = _get_path(node)
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
    by_all = {id(star) for node in walk.nodes for star in _find_order_by_all_stars(node)}
    return any(_names_whole(node, rows) for node in walk.nodes if id(node) not in by_all)


def _names_whole(node: _Node, rows: set[str]) -> bool:
    """Return whether a node names a column of messages or all columns, as an alias in `rows` does."""
    # A positional reference depends on the columns that are loaded, and a star names all.
    if node.get("class") in ("STAR", "POSITIONAL_REFERENCE"):
        return True
    # These use all columns without naming them.
    if node.get("type") == "PIVOT" or node.get("ref_type") == "NATURAL":
        return True
    path = _get_columns(node)
    if path and path[-1] in rows:
        return True
    joined = [_fold_case(name) for name in node.get("using_columns") or ()]
    return not {*path, *joined}.isdisjoint(MESSAGES)


def _get_columns(node: _Node) -> Sequence[str]:
    if node.get("class") == "FUNCTION":
        return [_fold_case(name) for name in _get_path(node)[:-1]]  # As in `text.upper()`.
    return [_fold_case(name) for name in node.get("column_names") or ()]


def _find_order_by_all_stars(node: _Node) -> list[_Node]:
    """Return the stars of `order by all`: they stand for the selected columns."""
    stars = [each.get("expression") or {} for each in node.get("orders") or ()]
    return [star for star in stars if star.get("columns") and star.get("expr") is None]
