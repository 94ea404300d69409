"""Terms: what compaction recognises as one, and which of them it keeps when not all fit."""

import pytest

from everlong.compaction import Item, compact
from everlong.compaction.terms import (
    ID,
    NAME,
    NUMBER,
    PATH,
    Term,
    find_terms,
    list_shown,
    sort_by_worth,
    weigh_term,
)
from everlong.models import Kind
from everlong.policy import Policy
from tests.support.conversations import Thread, build_shown_context

KIB = 1024
ALL = 10**9


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("see src/app/checkout.py:42 (again)", {"src/app/checkout.py": PATH}),
        ("import x from '../theme/theme.js';", {"../theme/theme.js": PATH}),
        ("edit README.md, then .gitignore.", {"README.md": PATH, ".gitignore": PATH}),
        ("retry_max=1200&x", {"retry_max": NAME, "1200": NUMBER}),
        ("ctx.ui.theme(color_of(a))", {"ctx.ui.theme": NAME, "color_of": NAME}),
        ("commit 3f2a9c1b by ana@example.com", {"3f2a9c1b": ID, "ana@example.com": ID}),
        ("https://example.com/a?b=1, ok", {"https://example.com/a?b=1": PATH}),
        ("plain words and 12 of them", {}),
        ("x" * 400 + "/y", {}),
        ("größe_max \ud800 a/b.py", {"a/b.py": PATH}),
    ],
)
def test_terms_are_recognised_by_their_form(text: str, terms: dict[str, int]) -> None:
    assert find_terms(text) == terms


def test_a_long_text_has_the_terms_of_its_parts() -> None:
    lines = [f"line {number} of src/module_{number}.py\n" for number in range(9000)]
    found = find_terms("".join(lines))
    assert {term for term in found if "/" in term} == {f"src/module_{n}.py" for n in range(9000)}


def build_term(text: str, seq: int = 50, **values: int | bool) -> Term:
    return Term(text, NAME, seq, Kind.TOOL_RESULT, 0, **values)  # type: ignore[arg-type] # counts


def test_newer_repeated_used_and_asked_terms_are_worth_more() -> None:
    plain = build_term("a.b")
    better = [
        build_term("a.b", seq=99),
        build_term("a.b", seen=4),
        build_term("a.b", used=1, used_seq=40),
        build_term("a.b", asked=True),
    ]
    assert all(weigh_term(each, 100) > weigh_term(plain, 100) for each in better)
    long = build_term("a." + "b" * 60)
    assert sort_by_worth([long, plain], 100) == [plain, long]


def test_a_path_shows_the_paths_that_it_ends_with() -> None:
    assert {"src/app/main.py", "app/main.py", "main.py"} <= list_shown(["open src/app/main.py"])


def add_noise(thread: Thread, count: int) -> None:
    for number in range(count):
        rows = "\n".join(f"row_{number}_{row} of table" for row in range(100))
        thread.step(f"dump {number}", f"{rows}\n")


def test_a_file_that_calls_named_outlives_names_that_only_results_had() -> None:
    thread = Thread()
    thread.user("Fix the importer.")
    for _ in range(3):
        thread.step("cat src/importer/core.py", "x = load_rows(path)\n" * 100)
    add_noise(thread, 60)
    base = compact(None, thread.items, Policy(), 0, keep_from_seq=ALL, to_bytes=4 * KIB)
    shown = build_shown_context(base)[0].text
    assert "src/importer/core.py" in shown
    assert "load_rows" in shown
    assert "row_3_50" not in shown
    assert "paths, ids, names" in shown.splitlines()[-1]


def test_statistics_of_terms_survive_compactions_and_count_each_message_once() -> None:
    thread = Thread()
    thread.user("Fix src/importer/core.py")
    thread.step("cat src/importer/core.py", "load_rows")
    base = compact(None, thread.items, Policy(), 0, keep_from_seq=ALL, to_bytes=4 * KIB)
    # The messages are still in the window, so they are read again.
    thread.user("and?")
    items: list[Item] = [item for item in thread.items if item.entry.seq > base.upto_seq]
    base = compact(base, items, Policy(), 0, keep_from_seq=ALL, to_bytes=4 * KIB)
    [term] = [term for term in base.terms if term.text == "src/importer/core.py"]
    assert (term.seen, term.used, term.asked) == (2, 1, True)


def test_terms_expire_with_the_entry_that_holds_them() -> None:
    policy = Policy(tool_result_ttl_seconds=10)
    thread = Thread()
    thread.user("go")
    thread.step("list", "secret_table " * 200)
    last_ms = thread.now_ms
    add_noise(thread, 5)
    base = compact(None, thread.items, policy, last_ms, keep_from_seq=ALL, to_bytes=4 * KIB)
    assert any(term.text == "secret_table" for term in base.terms)
    base = compact(base, (), policy, 10**9, keep_from_seq=ALL, to_bytes=4 * KIB)
    assert base.terms == ()
