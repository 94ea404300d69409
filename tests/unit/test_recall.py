"""Looking into what is no longer in the context: any part can be reached, and nothing takes long."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.compaction import PATTERN_CHARS_MAX, excerpt, grep

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=400)


@pytest.mark.guarantee(59)
@given(texts, st.integers(110, 300))
def test_every_text_can_be_paged_through_whole_characters_and_within_the_bound(
    text: str, bytes_max: int
) -> None:
    read, offset = "", 0
    for _ in range(len(text) + 1):
        page = excerpt(text, offset=offset, bytes_max=bytes_max)
        assert len(page.encode()) <= bytes_max
        more = re.search(r"\n\[bytes (\d+) to (\d+) of (\d+); offset=(\d+) shows more\]$", page)
        if more is None:
            read += page
            break
        assert int(more[1]) == offset
        read += page[: more.start()]
        offset = int(more[4])
    assert read == text


def test_an_offset_within_a_character_begins_with_that_character() -> None:
    assert excerpt("aé", offset=2, bytes_max=100) == "é"
    assert excerpt("abc", offset=-5, bytes_max=100) == "abc"
    assert excerpt("abc", offset=99, bytes_max=100) == ""


def test_a_lone_surrogate_is_shown_as_a_question_mark() -> None:
    assert excerpt("a\ud800b", offset=0, bytes_max=100) == "a?b"
    assert "a?b" in grep("a\ud800b", "A", bytes_max=1000).encode(errors="replace").decode()


def test_lines_are_found_in_any_case_with_the_offset_to_read_on_from() -> None:
    text = "first\nsécond ERROR: disk full\nthird error\n"
    found = grep(text, "error", bytes_max=1000)
    assert found.splitlines() == ["offset 6: sécond ERROR: disk full", "offset 31: third error"]
    assert excerpt(text, offset=31, bytes_max=1000) == "third error\n"
    assert grep(text, "no such text", bytes_max=1000) == ""


def test_a_star_stands_for_anything_in_a_line_and_an_escaped_one_for_itself() -> None:
    text = "GET /a 200\nGET /b 500\nPOST /b\n500 * 2"
    assert grep(text, "get*500", bytes_max=1000) == "offset 11: GET /b 500"
    assert grep(text, "500 \\* 2", bytes_max=1000) == "offset 30: 500 * 2"
    assert grep(text, "post*500", bytes_max=1000) == ""


def test_letters_that_change_their_length_do_not_move_the_offsets() -> None:
    sigma, final = "\u03a3", "\u03c2"
    found = grep(f"\u0130\u0130\u0130\nKA{sigma} here", f"ka{final}", bytes_max=1000)
    assert found == f"offset 7: KA{sigma} here"


def test_of_a_long_line_the_match_is_shown_with_what_is_around_it() -> None:
    text = "x" * 5000 + " needle " + "y" * 5000
    [line] = grep(text, "needle", bytes_max=2000).splitlines()
    assert line.startswith("offset 4901: …x")
    assert "needle" in line
    assert len(line.encode()) < 500


def test_more_matches_than_fit_are_counted() -> None:
    found = grep("match\n" * 1000, "match", bytes_max=300)
    assert len(found.encode()) <= 300
    shown = found.splitlines()
    assert shown[-1] == f"[{1000 - len(shown) + 1} more lines match; a longer pattern leaves fewer]"


@pytest.mark.parametrize("pattern", ["", "*", "***", "a\nb", "a" * (PATTERN_CHARS_MAX + 1)])
def test_a_pattern_that_cannot_be_searched_for_is_refused_with_the_remedy(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        grep("some text", pattern, bytes_max=100)


@pytest.mark.parametrize("pattern", ["(a+)+$", "a*" * 90 + "b", "(.*)*x"])
def test_a_pattern_that_would_hang_a_regular_expression_takes_one_pass(pattern: str) -> None:
    begun = time.process_time()
    grep("a" * 1_000_000, pattern, bytes_max=1000)
    assert time.process_time() - begun < 2.0
