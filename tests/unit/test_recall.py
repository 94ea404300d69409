"""Recall: any entry outside the context can be read and searched, at a bounded cost."""

import dataclasses
import json
import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.evidence_corpus import transcript
from bench.evidence_measure import compact_in_rounds, measure_context
from everlong.activities import builtin_tools
from everlong.activities.builtin_tools import Session, recall, use_session
from everlong.compaction import PATTERN_CHARS_MAX, Item, excerpt, grep
from everlong.models import Kind, Message, SegmentRef, build_entry, thread_key
from everlong.storage.context_store import ContextStore, LoadedContext, write_message
from everlong.storage.pack_store import PackStore
from tests.support.fake_stores import CountingStore

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=400)


@pytest.mark.guarantee(59)
@given(texts, st.integers(110, 300))
def test_any_text_is_paged_by_whole_characters_within_the_bound(text: str, bytes_max: int) -> None:
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


def test_an_offset_within_a_character_starts_at_that_character() -> None:
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


def test_a_star_matches_anything_and_an_escaped_one_itself() -> None:
    text = "GET /a 200\nGET /b 500\nPOST /b\n500 * 2"
    assert grep(text, "get*500", bytes_max=1000) == "offset 11: GET /b 500"
    assert grep(text, "500 \\* 2", bytes_max=1000) == "offset 30: 500 * 2"
    assert grep(text, "post*500", bytes_max=1000) == ""


def test_case_folding_does_not_shift_offsets() -> None:
    sigma, final = "\u03a3", "\u03c2"
    found = grep(f"\u0130\u0130\u0130\nKA{sigma} here", f"ka{final}", bytes_max=1000)
    assert found == f"offset 7: KA{sigma} here"


def test_a_match_in_a_long_line_is_shown_with_its_surroundings() -> None:
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
def test_an_invalid_pattern_is_refused_with_a_remedy(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        grep("some text", pattern, bytes_max=100)


@pytest.mark.parametrize("pattern", ["(a+)+$", "a*" * 90 + "b", "(.*)*x"])
def test_a_pattern_that_would_hang_a_regular_expression_takes_one_pass(pattern: str) -> None:
    begun = time.process_time()
    grep("a" * 1_000_000, pattern, bytes_max=1000)
    assert time.process_time() - begun < 2.0


THREAD = thread_key("default", "recalled")


class JournalSession:
    """A journal that a test writes, and a session on it."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.contexts = ContextStore(PackStore(self.store), THREAD)
        self.head: SegmentRef | None = None
        self.seq = 1

    async def add(self, text: str, kind: Kind = Kind.TOOL_RESULT) -> None:
        role = "tool" if kind == Kind.TOOL_RESULT else "user"
        message = Message(role=role, text=text, call_id="c", tool="bash")
        entry, _ = await write_message(self.contexts.journal, kind, message, 1, 1000)
        entry = dataclasses.replace(entry, seq=self.seq)
        self.head, _ = await self.contexts.journal.append(self.head, [entry])
        self.seq += 1

    async def take(self, items: Sequence[Item], at_once: int = 20) -> None:
        for start in range(0, len(items), at_once):
            entries = [
                item.entry
                if item.message is None
                else build_entry(item.entry.seq, item.entry.kind, item.message, 1)
                for item in items[start : start + at_once]
            ]
            self.head, _ = await self.contexts.journal.append(self.head, entries)

    def session(self) -> Session:
        async def no_past() -> LoadedContext:
            raise AssertionError("recall reads the journal alone")

        assert self.head is not None
        self.store.gets = 0
        return Session(ContextStore(PackStore(self.store), THREAD), self.head, no_past)


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin_tools, "_SEARCH_BYTES_MAX", 40_000)
    monkeypatch.setattr(builtin_tools, "_SEARCH_ENTRIES_MAX", 64)


def parse_arguments(hint: str) -> dict[str, object]:
    """Return what a hint says to call recall with."""
    found = re.search(r"recall\((.*)\)", hint)
    assert found is not None
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\d+)', found[1])
    return {name: json.loads(value) for name, value in pairs}


@pytest.mark.guarantee(59)
@pytest.mark.usefixtures("small_bounds")
async def test_a_search_without_a_match_stops_at_the_bound_and_can_continue() -> None:
    journalled = JournalSession()
    for _ in range(20):
        await journalled.add("nothing here " * 1000)
    await journalled.add('a "needle"', Kind.MESSAGE)
    asked: dict[str, object] = {"seq": 1, "to_seq": 21, "pattern": '"needle"'}
    calls = 0
    while calls < 30:
        calls += 1
        with use_session(journalled.session()):
            answer = await recall(**asked)  # type: ignore[arg-type] # as a model writes them
        assert journalled.store.gets < 12
        if not answer.startswith("[more"):
            break
        assert parse_arguments(answer)["seq"] > asked["seq"]  # type: ignore[operator] # both are numbers
        asked = parse_arguments(answer)
    assert answer.startswith("21 message: ")
    assert 5 < calls < 15


@pytest.mark.usefixtures("small_bounds")
async def test_an_oversized_entry_does_not_hide_later_ones() -> None:
    journalled = JournalSession()
    await journalled.add("needle " + "abc " * 20_000)
    await journalled.add("needle", Kind.MESSAGE)
    with use_session(journalled.session()):
        first = await recall(seq=1, to_seq=2, pattern="needle")
        assert first.startswith("1 tool_result: ")
        second = await recall(**parse_arguments(first))  # type: ignore[arg-type] # as above
        assert second == "offset 0: needle"


@pytest.mark.guarantee(59)
@pytest.mark.usefixtures("small_bounds")
async def test_a_search_of_a_long_journal_reads_a_part_and_says_how_to_continue() -> None:
    journalled = JournalSession()
    await journalled.add("the needle", Kind.MESSAGE)
    for _ in range(200):
        await journalled.add("hay", Kind.MESSAGE)
    asked: dict[str, object] = {"pattern": "needle"}
    calls = 0
    while calls < 10:
        calls += 1
        with use_session(journalled.session()):
            answer = await recall(**asked)  # type: ignore[arg-type] # as above
        assert journalled.store.gets < 20
        if "the needle" in answer:
            break
        asked = parse_arguments(answer)
    assert calls == 4
    with use_session(journalled.session()), pytest.raises(ValueError, match="from entry 138 on"):
        await recall(ref="deadbeef")


async def test_a_ref_shared_by_several_entries_is_shown_with_their_seqs() -> None:
    journalled = JournalSession()
    messages = [Message(role="user", text=f"{n} " + "long " * 300) for n in range(3)]
    await journalled.take(
        [Item(build_entry(n, Kind.MESSAGE, each, 1), each) for n, each in enumerate(messages, 1)]
    )
    assert journalled.head is not None
    shared = journalled.head.ref.digest
    with use_session(journalled.session()), pytest.raises(ValueError, match=r"\[1, 2, 3\]"):
        await recall(ref=shared[:10])


@pytest.mark.guarantee(59)
async def test_recall_finds_everything_that_compaction_omitted() -> None:
    """By what the context shows: the beginning of a thing to search for, or the seq of its line."""
    story = transcript("recalled", "ops")
    journalled = JournalSession()
    await journalled.take(story.items)
    shown, _ = compact_in_rounds(story, 20_000)
    _, missing = measure_context(story, shown, recall=False)
    lost = [text for kind in ("decisions", "paths", "commands", "ids") for text in missing[kind]]
    assert len(lost) > 200
    with use_session(journalled.session()):
        for text in lost[:: len(lost) // 60]:
            pattern = text[:200].replace("*", "\\*")
            answer = await recall(pattern=pattern)
            assert text[:200] in answer, answer[:500]
