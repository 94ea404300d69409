"""remember, forget and recall, called by a model as it would: through the loop."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from everlong import Agent, Policy, Reply, limits, tool
from everlong.models import Kind, Message, ToolCall
from everlong.testing import ScriptedModel
from tests.support.scripted_agents import results
from tests.support.thread_driver import Drive, DrivenThread

DAY = 86_400.0


def obedient(*tools: Any) -> Agent:
    """Calls the tools that a message lists as JSON; then says what they returned.

    To "facts?" it says what it is shown of its memory.
    """

    def script(context: Sequence[Message]) -> Reply:
        last = max(i for i, message in enumerate(context) if message.role == "user")
        turn = context[last:]
        if turn[0].text == "facts?":
            return Reply(text=read_facts(context))
        if results(turn):
            return Reply(text="\n".join(results(turn)))
        wanted = json.loads(turn[0].text)
        return Reply(
            tool_calls=tuple(
                ToolCall(id=f"call-{i}", tool=name, arguments=json.dumps(arguments))
                for i, (name, arguments) in enumerate(wanted)
            )
        )

    return Agent(name="ops", model=ScriptedModel(script, whole=True), tools=tools)


def read_facts(context: Sequence[Message]) -> str:
    """Return the lines that a context shows of the thread's memory."""
    [summary] = [message.text for message in context if message.role == "summary"] or [""]
    lines = summary.partition("Facts:\n")[2].splitlines()
    facts = []
    for line in lines:
        if not line.startswith("- "):
            break
        facts.append(line[2:])
    return "; ".join(facts) or "none"


async def do(thread: DrivenThread, name: str, **arguments: object) -> str:
    return await thread.ask(json.dumps([(name, arguments)]))


@pytest.mark.guarantee(61)
async def test_a_fact_is_in_every_context_from_then_on_until_it_is_forgotten(
    drive: Drive,
) -> None:
    async with drive([obedient()]) as thread:
        assert await thread.ask("facts?") == "none"
        assert (
            await do(thread, "remember", key="gate", text="the gate code is 4711") == "remembered"
        )
        assert await thread.ask("facts?") == "gate: the gate code is 4711"
        assert await do(thread, "remember", key="gate", text="it is 4712 now") == "remembered"
        assert await thread.ask("facts?") == "gate: it is 4712 now"
        assert await do(thread, "forget", key="gate") == "forgot 'gate'"
        assert await thread.ask("facts?") == "none"
        changes = await thread.data(Kind.MEMORY)
        assert [change.get("forgotten", "") for change in changes] == ["", "", "gate"]
        assert changes[0]["remembered"]["text"] == "the gate code is 4711"


@pytest.mark.guarantee(61)
async def test_a_fact_survives_compactions_verbatim(drive: Drive) -> None:
    text = "Übermorgen, 12:30 \U0001f600: 'the key' = \"a\\b\"; 50% off"
    async with drive([obedient(noise)], Policy(compact_to_bytes=3 * limits.KIB)) as thread:
        await do(thread, "remember", key="odd one", text=text)
        for number in range(3):
            await do(thread, "noise", number=number)
            await thread.handle.signal("compact")
            await thread.wait_until(lambda status, n=number: status.counters.compactions == n + 1)  # type: ignore[misc]
            assert await thread.ask("facts?") == f"odd one: {text}"
        assert await do(thread, "forget", key="odd one") == "forgot 'odd one'"
        assert await thread.ask("facts?") == "none"


@tool
def noise(number: int) -> str:
    """Make some noise."""
    return "\n".join(f"line {i} of {number}: nothing of interest here" for i in range(300))


@pytest.mark.guarantee(61)
async def test_a_fact_expires(drive: Drive) -> None:
    async with drive([obedient()], Policy(fact_ttl_seconds=3600)) as thread:
        await do(thread, "remember", key="short", text="soon gone", ttl_days=4 / DAY)
        await do(thread, "remember", key="usual", text="an hour")
        assert await thread.ask("facts?") == "short: soon gone; usual: an hour"
        facts = [change["remembered"] for change in await thread.data(Kind.MEMORY)]
        await asyncio.sleep(max(0.0, facts[0]["expires_ms"] / 1000 - time.time()) + 0.1)
        assert await thread.ask("facts?") == "usual: an hour"
        assert facts[1]["expires_ms"] - facts[1]["time_ms"] == 3_600_000
        assert "no fact" in await do(thread, "forget", key="short")


@pytest.mark.guarantee(61)
async def test_the_least_important_facts_are_evicted_first_and_the_model_reads_it(
    drive: Drive,
) -> None:
    async with drive([obedient()], Policy(memory_facts_max=3)) as thread:
        for key, importance in (("a", 3), ("b", 1), ("c", 5)):
            await do(thread, "remember", key=key, text=f"fact {key}", importance=importance)
        answer = await do(thread, "remember", key="d", text="fact d", importance=1)
        assert answer == "remembered; forgot b to make room"
        answer = await do(thread, "remember", key="e", text="fact e", importance=2)
        assert answer == "remembered; forgot d to make room"
        assert await thread.ask("facts?") == "a: fact a; c: fact c; e: fact e"
        evicted = [change.get("evicted", []) for change in await thread.data(Kind.MEMORY)]
        assert evicted == [[], [], [], ["b"], ["d"]]


async def test_facts_of_one_reply_are_all_remembered_within_the_cap(drive: Drive) -> None:
    async with drive([obedient()], Policy(memory_facts_max=4)) as thread:
        calls = [("remember", {"key": f"k{i}", "text": f"fact {i}"}) for i in range(6)]
        assert (await thread.ask(json.dumps(calls))).splitlines() == ["remembered"] * 6
        kept = {fact.partition(":")[0] for fact in (await thread.ask("facts?")).split("; ")}
        assert len(kept) == 4
        changes = await thread.data(Kind.MEMORY)
        assert sum("remembered" in change for change in changes) == 6
        # Those that had to go are on record.
        gone = {key for change in changes for key in change.get("evicted", [])}
        assert gone == {f"k{i}" for i in range(6)} - kept


WRONG: list[tuple[str, dict[str, object], str]] = [
    ("forget", {"key": "never"}, "there is no fact of that key"),
    ("remember", {"key": "k", "text": "x" * 600}, "remember less"),
    ("remember", {"key": "k" * 65, "text": "x"}, "the arguments are invalid"),
    ("remember", {"key": "", "text": "x"}, "the arguments are invalid"),
    ("remember", {"key": "k", "text": ""}, "the arguments are invalid"),
    ("remember", {"key": "k", "text": "x", "ttl_days": -1}, "the arguments are invalid"),
    ("remember", {"key": "k", "text": "x", "importance": 6}, "the arguments are invalid"),
    ("recall", {}, "say what to recall"),
    ("recall", {"seq": 999}, "there is no entry 999 yet"),
    ("recall", {"seq": 0}, "the arguments are invalid"),
    ("recall", {"seq": 2, "to_seq": 1}, "to_seq is before seq"),
    ("recall", {"ref": "abc"}, "8 characters"),
    ("recall", {"ref": "0123456789"}, "nothing stored has a digest"),
    ("recall", {"pattern": "*"}, "needs some characters"),
    ("recall", {"pattern": "x" * 300}, "at most"),
]


async def test_the_model_reads_why_a_memory_tool_failed(drive: Drive) -> None:
    async with drive([obedient()]) as thread:
        answer = await thread.ask(json.dumps([(name, arguments) for name, arguments, _ in WRONG]))
        texts = [text.lower() for text in await thread.tool_results()]
        assert answer.count("error: ") == len(texts) == len(WRONG)
        for text, (_, _, expected) in zip(texts, WRONG, strict=True):
            assert text.startswith("error: ")
            assert expected in text
        assert await thread.data(Kind.MEMORY) == []


LINES = 12_000


@tool
def big_log() -> str:
    """Read a log of half a megabyte."""
    return "\n".join(f"{i:05} user{i % 97} logged in from 10.0.{i % 256}" for i in range(LINES))


@pytest.mark.guarantee(59)
async def test_recall_finds_the_original_behind_a_shortened_result(drive: Drive) -> None:
    async with drive([obedient(big_log)]) as thread:
        answer = await do(thread, "big_log")
        whole = str(big_log.function())
        assert len(whole) > 400_000
        assert len(answer) < 40_000  # The model is shown an excerpt.
        [entry] = await thread.entries(Kind.TOOL_RESULT)
        assert f"recall(seq={entry.seq})" in answer
        assert entry.original is not None
        assert "06000 user" not in answer
        # By what it says, within the entry and in everything; by ref; and piece by piece.
        found = await do(thread, "recall", seq=entry.seq, pattern="06000 user")
        assert "06000 user83 logged in from 10.0.112" in found
        found = await do(thread, "recall", pattern="06000 USER*112")
        assert f"{entry.seq} tool_result" in found
        assert "06000 user83" in found
        digest = entry.original.digest
        assert (await do(thread, "recall", ref=digest[:12])).startswith(whole[:1000])
        offset = len(whole) // 2
        piece = await do(thread, "recall", seq=entry.seq, offset=offset)
        assert piece.startswith(whole[offset : offset + 1000])
        assert f"of {len(whole)}" in piece
        beyond = await do(thread, "recall", seq=entry.seq, offset=10 * len(whole))
        assert str(len(whole)) in beyond


async def test_recall_lists_a_range_and_reports_a_missing_match(drive: Drive) -> None:
    async with drive([obedient(noise)]) as thread:
        for number in range(3):
            await do(thread, "noise", number=number)
        listed = await do(thread, "recall", seq=1, to_seq=8)
        assert [line.split()[0] for line in listed.splitlines() if line[0].isdigit()] == [
            str(seq) for seq in range(1, 9)
        ]
        assert len(listed) < 20_000
        found = await do(thread, "recall", seq=1, to_seq=8, pattern="line 7 of 1")
        assert "line 7 of 1:" in found
        assert "of 0" not in found
        assert "do not hold that" in await do(thread, "recall", seq=1, to_seq=3, pattern="xyzzy")
        assert await do(thread, "recall", seq=1, pattern="xyzzy") == "entry 1 does not hold that"


@pytest.mark.guarantee(59)
async def test_recall_opens_compacted_entries_and_notes(drive: Drive) -> None:
    async with drive([obedient(noise)], Policy(compact_to_bytes=2 * limits.KIB)) as thread:
        await do(thread, "noise", number=5)
        await do(thread, "remember", key="k", text="a fact")
        await thread.handle.signal("compact")
        await thread.wait_until(lambda status: status.counters.compactions == 1)
        assert "line 299 of 5: nothing" in await do(thread, "recall", seq=3)
        [memory] = await thread.entries(Kind.MEMORY)
        assert "a fact" in await do(thread, "recall", seq=memory.seq)
        [compaction] = await thread.entries(Kind.COMPACTION)
        assert "after_bytes" in await do(thread, "recall", seq=compaction.seq)
