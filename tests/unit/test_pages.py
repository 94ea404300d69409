"""Parts of pages: addresses, words and charts. tests/browser covers their appearance."""

import json
import math
import re
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.admin.web.pages import charts, filters
from everlong.admin.web.pages.layout import make_environment
from everlong.admin.web.pages.threads import COLUMNS, ListQuery, build_heads, parse_list_query


@given(st.floats(min_value=0, max_value=1e15), st.booleans())
def test_ticks_are_few_and_reach_the_highest_value(high: float, binary: bool) -> None:
    found = charts.choose_ticks(high, binary=binary)
    assert found[0] == 0
    assert found[-1] >= high * (1 - 1e-6)
    assert 2 <= len(found) <= 6
    assert found == sorted(set(found))


SAMPLES = st.lists(
    st.tuples(st.integers(0, 2**45), st.integers(0, 2**45)), min_size=1, max_size=30
).map(sorted)


@given(SAMPLES, st.booleans(), st.booleans())
def test_all_drawn_points_are_within_the_chart(
    places: list[tuple[int, int]], bars: bool, is_time: bool
) -> None:
    samples = [charts.Sample(x, y, "", ()) for x, y in places]
    drawn = charts.build_chart(samples, is_time=is_time, y_label=str, bars=bars)
    if len(places) == 1 and not bars:
        assert drawn is None
        return
    assert drawn is not None
    for point in drawn.points:
        assert drawn.left <= point.x <= drawn.right
        assert 0 <= point.y <= drawn.floor
    assert all(0 <= tick.at <= drawn.height for tick in drawn.y_ticks)
    assert all(drawn.left <= tick.at <= drawn.right for tick in drawn.x_ticks)
    assert all((tick.ms is not None) == is_time for tick in drawn.x_ticks)


@pytest.mark.parametrize("steps", [(1, 2), (0, 3), (1, 7), (5, 5), (1, 1000)])
def test_axis_steps_are_unique_whole_numbers(steps: tuple[int, int]) -> None:
    drawn = charts.build_chart([charts.Sample(x, 1, "", ()) for x in steps], y_label=str)
    assert drawn is not None
    labels = [tick.label for tick in drawn.x_ticks]
    assert len(set(labels)) == len(labels) <= 5
    assert all(label.replace(",", "").isdigit() for label in labels)


@given(SAMPLES)
def test_a_sparkline_has_a_line_or_nothing(places: list[tuple[int, int]]) -> None:
    drawn = charts.build_spark(places)
    assert (drawn is None) == (len(places) < 2)
    if drawn is not None:
        numbers = [float(each) for each in drawn.line[1:].replace("L", " ").split()]
        assert all(math.isfinite(each) and -1 <= each <= 85 for each in numbers)


@pytest.mark.parametrize(
    ("thread_id", "url"),
    [
        ("ops-7", "/threads/ops-7"),
        ("a.b~c", "/threads/a.b~c"),
        ("..", "/threads/?id=.."),
        ("a/b", "/threads/?id=a%2Fb"),
        ("50%", "/threads/?id=50%25"),
        ("ü", "/threads/?id=%C3%BC"),
        ("\ud800", "/threads/?id=%3F"),
    ],
)
def test_every_thread_has_an_address_that_browsers_do_not_normalize(
    thread_id: str, url: str
) -> None:
    assert filters.build_thread_url(thread_id) == url


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb"]
)
def test_a_login_redirects_to_no_other_server(wanted: str) -> None:
    assert filters.check_local_path(wanted) == "/"
    assert filters.check_local_path("/fleet?x=1") == "/fleet?x=1"


FIELDS = ["text", "status", "agent", "label", "age", "sort", "columns", "offset", "cursor"]


@given(st.dictionaries(st.sampled_from(FIELDS), st.text(max_size=30)))
def test_any_query_string_gives_a_list(given_: dict[str, str]) -> None:
    asked = parse_list_query(given_)
    assert 0 <= asked.offset < 10_000_000
    assert asked.url().startswith("/")
    assert [head.label for head in build_heads(asked, "-started")][:2] == ["Thread", "Status"]
    # What a URL says is read from it again, whatever it is.
    url = asked.url(cursor=asked.cursor)
    parts = dict(parse_qsl(url.partition("?")[2], errors="surrogatepass"))
    again = parse_list_query(parts)
    assert again.url(cursor=again.cursor) == url


def test_a_second_click_on_a_column_reverses_the_order() -> None:
    asked = ListQuery(sort="-stored", offset=50)
    [stored] = [head for head in build_heads(asked, "-stored") if head.label == "Stored"]
    assert (stored.order, stored.url) == ("descending", "/?sort=stored")
    [steps] = [head for head in build_heads(asked, "-stored") if head.label == "Steps"]
    assert (steps.order, steps.url) == ("", "/?sort=-steps")


def test_chosen_columns_are_in_the_url_and_unknown_ones_are_not() -> None:
    asked = parse_list_query({"columns": "cost,no-such,tokens"})
    assert [each.name for each in asked.shown] == ["id", "status", "tokens", "cost"]
    assert asked.url(sort="-cost") == "/?sort=-cost&columns=tokens,cost"
    default = [each.name for each in COLUMNS if each.is_default and not each.is_fixed]
    assert parse_list_query({"columns": ",".join(default)}).url() == "/"
    assert parse_list_query({"columns": "no-such"}).columns == ""
    assert len(parse_list_query({"columns": "none"}).shown) == 2


def test_all_shown_text_is_escaped() -> None:
    template = make_environment().from_string("{{ text }}{{ text | cut(8) }}{{ text | pretty }}")
    assert "<" not in template.render(text="<b>&lt;" * 10)


@pytest.mark.parametrize(
    ("days", "text"), [(None, ""), (0.5, "reached in about 12 h"), (49.0, "49 days left")]
)
def test_days_to_a_limit_are_put_in_words(days: float | None, text: str) -> None:
    assert filters.format_days_left(days) == text


def test_json_is_indented_and_other_text_unchanged() -> None:
    assert filters.indent_json('{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert filters.indent_json("{not json\n") == "{not json\n"
    for deep in ("[" * 100_000, "[" * 500 + "]" * 500):
        assert filters.indent_json(deep) == deep


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(JSON, st.booleans())
def test_indented_json_keeps_its_meaning(value: Any, is_ascii: bool) -> None:
    shown = filters.indent_json(json.dumps(value, ensure_ascii=is_ascii))
    assert json.loads(shown) == value
    assert all(c.isprintable() or c == "\n" for c in shown)
    laid_out = json.dumps(value, indent=2, ensure_ascii=False)
    assert shown == laid_out or not re.fullmatch(r"[ -~\n]*", laid_out)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        # A parser keeps one of two equal keys, and the tool's parser may keep the other.
        ('{"to":"ann","to":"mallory"}', '{\n  "to": "ann",\n  "to": "mallory"\n}'),
        ('{"to":1,"\\u0074o":2}', '{\n  "to": 1,\n  "to": 2\n}'),
        ("[1e999,-1E+5,0.10,12345678901234567890.0]", None),
        ('{"text":"\\u202eabc"}', '{\n  "text": "\\u202eabc"\n}'),
        ('{"text":"\u202eabc\u200b\u2066\ufe0f\u3164"}', None),
        ('{"text":"\\ud800"}', '{\n  "text": "\\ud800"\n}'),
        ("pay \u202eann\x1b[31m", "pay \\u202eann\\u001b[31m"),
        ('"\\\\u202e"', '"\\\\u202e"'),
    ],
)
def test_arguments_are_shown_verbatim(arguments: str, shown: str | None) -> None:
    found = filters.indent_json(arguments)
    assert shown is None or found == shown
    assert not re.search("[\u202e\u200b\u2066\ufe0f\u3164\x1b\ud800]", found)
    for number in ("1e999", "-1E+5", "0.10", "12345678901234567890.0"):
        assert (number in found) is (number in arguments)


def test_kept_elements_of_a_page_have_stable_ids() -> None:
    assert filters.make_mark("ops-7", "1-1-ab") == filters.make_mark("ops-7", "1-1-ab")
    assert (
        len(
            {
                filters.make_mark("a", "bc"),
                filters.make_mark("ab", "c"),
                filters.make_mark("\ud800", ""),
            }
        )
        == 3
    )
    assert filters.make_mark("ops 7", "1").isalnum()
