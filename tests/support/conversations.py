"""Builder and hypothesis strategy of conversations, as entries with messages for compaction."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from everlong import compaction
from everlong.compaction import Item, Snapshot
from everlong.models import Entry, Kind, Message, ToolCall
from everlong.policy import Policy

WHOLE = 1 << 40
ROLES = {
    Kind.MESSAGE: "user",
    Kind.REPLY: "assistant",
    Kind.TOOL_RESULT: "tool",
    Kind.FAILURE: "failure",
}


class Thread:
    """Conversation builder. Each entry is one second later than the previous one."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    @property
    def now_ms(self) -> int:
        return 1000 * len(self.items)

    def add(self, kind: Kind, text: str = "", **fields: Any) -> int:
        message = Message(role=ROLES[kind], text=text, **fields)
        seq = len(self.items) + 1
        entry = Entry(seq=seq, kind=kind, time_ms=1000 * seq, size_bytes=len(text))
        self.items.append(Item(entry, message))
        return seq

    def user(self, text: str) -> int:
        return self.add(Kind.MESSAGE, text)

    def says(self, text: str) -> int:
        return self.add(Kind.REPLY, text)

    def calls(self, *tools: tuple[str, dict[str, Any]], text: str = "") -> int:
        seq = len(self.items) + 1
        calls = tuple(
            ToolCall(id=f"{seq}-{n}", tool=tool, arguments=json.dumps(arguments))
            for n, (tool, arguments) in enumerate(tools)
        )
        return self.add(Kind.REPLY, text, tool_calls=calls)

    def result(self, call_id: str, text: str, tool: str = "bash") -> int:
        return self.add(Kind.TOOL_RESULT, text, call_id=call_id, tool=tool)

    def step(self, command: str, result: str, text: str = "") -> int:
        seq = self.calls(("bash", {"command": command}), text=text)
        return self.result(f"{seq}-0", result)

    def note(self, kind: Kind, **data: Any) -> int:
        seq = len(self.items) + 1
        entry = Entry(seq=seq, kind=kind, time_ms=1000 * seq, size_bytes=1, data=data)
        self.items.append(Item(entry))
        return seq


def build_shown_context(
    base: Snapshot | None,
    items: Sequence[Item] = (),
    policy: Policy | None = None,
    now_ms: int = 0,
    result_bytes_max: int = WHOLE,
) -> list[Message]:
    return compaction.build_context(
        base, items, policy or Policy(), now_ms, lambda _: result_bytes_max
    )


def check_pairs(messages: Sequence[Message]) -> None:
    """Assert that each reply is followed by the results of its calls, in order, and no others."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert waiting, "a result without its call"
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting, "a call without its result"
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


_WORDS = """
    please decided later TODO src/app/main.py 9f3c2ab1d 340 ms https://x.org/a?b=1 C:\\a\\b.txt error:
    waiting for Dana. We will use it. Done: ENG-12 naïve 日本語 `make x` not so? ```sh ``` $ git log -p
    """
words = st.sampled_from(
    [*_WORDS.split(), "\n", "\n- ", "\ud800", "\x00", "Decisions:\n", "$ make all\n"]
)
texts = st.one_of(
    st.text(max_size=60),
    st.lists(words, max_size=40).map(" ".join),
    st.integers(1, 30_000).map(lambda n: "w" * n),
    st.integers(1, 600).map(lambda n: "line of a log 12345 /var/log/x.log\n" * n),
)
arguments = st.one_of(
    st.dictionaries(
        st.text(max_size=8), st.one_of(texts, st.integers(), st.floats(), st.none()), max_size=3
    ).map(json.dumps),
    st.sampled_from(["", "{", "[1]", "null", '{"a":' * 50, "[" * 5000, '{"x": 1e999}']),
    texts,
)


@st.composite
def conversations(draw: st.DrawFn, steps_max: int = 12) -> list[Item]:
    """Draw entries of any kind in any order, with unanswered calls and results without a call."""
    thread = Thread()
    for _ in range(draw(st.integers(0, steps_max))):
        kind = draw(st.sampled_from([*Kind]))
        if kind == Kind.REPLY:
            ids = draw(st.lists(st.sampled_from(["a", "b", "c", "i" * 300]), max_size=4))
            calls = tuple(
                ToolCall(
                    id=each,
                    tool=draw(st.sampled_from(["bash", "t" * 80])),
                    arguments=draw(arguments),
                )
                for each in ids
            )
            native = draw(
                st.sampled_from([None, None, {"kind": "response", "parts": ["x" * 9000]}])
            )
            thread.add(kind, draw(texts), tool_calls=calls, native=native)
            for each in draw(st.permutations(ids)):
                if draw(st.integers(0, 5)):
                    thread.result(each, draw(texts))
        elif kind == Kind.TOOL_RESULT:
            thread.result(draw(st.sampled_from(["a", "b", "z"])), draw(texts))
        elif kind in ROLES:
            thread.add(kind, draw(texts))
        elif kind in (Kind.ASKED, Kind.DECIDED):
            thread.note(
                kind, id="1-0", tool="bash", arguments="{}", approve=draw(st.booleans()), by="Dana"
            )
        elif kind in (Kind.LIMIT, Kind.CONTROL, Kind.FORK):
            thread.note(kind, action="pause", by=draw(texts), reason=draw(texts))
    return thread.items
