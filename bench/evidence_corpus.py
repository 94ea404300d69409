"""A seeded corpus of long transcripts, each with a list of the evidence planted in it.

The generator records each piece of evidence as it plants it. From compaction it imports only the type of
its input.
"""

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Final

from bench import evidence_phrases as phrases
from bench.evidence_names import World
from bench.evidence_outputs import (
    build_failed_output,
    build_long_output,
    build_shell_line,
    build_short_output,
    find_failures,
)
from everlong.compaction import Item
from everlong.models import Entry, Kind, Message, ToolCall, build_entry

DOMAINS: Final = tuple(phrases.DOMAINS)
_START_MS: Final = 1_730_000_000_000
_STEP_MS: Final = 20_000


@dataclasses.dataclass(frozen=True)
class Planted:
    """A planted piece of evidence, and its entry."""

    text: str
    seq: int
    key: int = 0
    """For a pair, the seq of its result."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A tool call and its outcome."""

    call_id: str
    reply_seq: int
    seq: int
    """Seq of the result."""
    tool: str
    argument: str
    """Subject of the call."""
    outcome: str
    """Words for the outcome; `ok` for a long output."""


@dataclasses.dataclass
class Truth:
    """The planted evidence of a transcript."""

    asks: list[Planted] = dataclasses.field(default_factory=list)
    closed: list[Planted] = dataclasses.field(default_factory=list)
    """Asks that were open for a while."""
    decisions: list[Planted] = dataclasses.field(default_factory=list)
    pairs: list[Pair] = dataclasses.field(default_factory=list)
    paths: dict[str, int] = dataclasses.field(default_factory=dict)
    """First entry of each text."""
    commands: dict[str, int] = dataclasses.field(default_factory=dict)
    ids: dict[str, int] = dataclasses.field(default_factory=dict)
    numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    """Numbers outside long outputs."""


@dataclasses.dataclass(frozen=True)
class Transcript:
    """One thread from its first message on."""

    name: str
    domain: str
    items: tuple[Item, ...]
    truth: Truth


def corpus(
    count: int = 40, seed: int = 4, forms: phrases.Forms = phrases.FORMS
) -> Iterator[Transcript]:
    """Yield `count` transcripts, with the kinds of work in turn; the same on every run."""
    for at in range(count):
        yield transcript(f"{seed}-{at}", DOMAINS[at % len(DOMAINS)], forms)


def transcript(name: str, domain: str, forms: phrases.Forms = phrases.FORMS) -> Transcript:
    """Return one transcript of 100 to 300 steps."""
    writer = _Writer(random.Random(f"evidence {name}"), domain, forms)  # noqa: S311 - no secret
    steps = writer.random.randint(100, 284)
    while writer.steps < steps:
        writer.turn()
    writer.last_message()
    return Transcript(name, domain, tuple(writer.items), writer.truth)


class _Writer:
    """Writes a transcript, and records the planted evidence."""

    def __init__(self, source: random.Random, domain: str, forms: phrases.Forms) -> None:
        self.random = source
        self.domain = domain
        self.forms = forms
        self.words = phrases.DOMAINS[domain]
        self.world = World(source, domain)
        self.truth = Truth()
        self.items: list[Item] = []
        self.steps = 0
        self._todos = list(self.words["todos"])
        self._closing: list[str] = []
        self._used: set[str] = set()
        self._numbers: dict[str, None] = {}

    def turn(self) -> None:
        """Add a message, some steps, and an answer."""
        parts = [self._request()]
        if self.random.random() < 0.5:
            parts.append(self._ask(self.forms.asks_by_user))
        if self.random.random() < 0.5:
            parts.append(self._decision(self.forms.decisions_by_user))
        if self.random.random() < 0.3:
            parts.append(f"See {self.world.path()} and {self.world.known_id()}.")
        if self.random.random() < 0.2:
            parts.append(self._opening())
        if self.random.random() < 0.08:
            parts.append("This is what I see:\n```\n" + build_long_output(self.world, 15) + "\n```")
        self._message(parts)
        for _ in range(self.random.randint(4, 16)):
            self._step()
        self._answer()

    def last_message(self) -> None:
        """Add the message of a turn that has just begun."""
        self._message([self._request()])

    def _message(self, parts: list[str]) -> None:
        self.random.shuffle(parts)
        between = self.random.choice([" ", "\n", "\n\n"])
        self._add(
            Kind.MESSAGE, Message(role="user", text=between.join(part for part in parts if part))
        )

    def _step(self) -> None:
        self.steps += 1
        parts = [self._pick(phrases.NARRATION)]
        if self.random.random() < 0.3:
            parts.append(self._finding())
        if self.random.random() < 0.06:
            parts.append(self._decision(self.forms.decisions_by_agent))
        if self.random.random() < 0.04:
            parts.append(self._ask(self.forms.asks_by_agent))
        wanted = [self._call() for _ in range(self.random.choice([1, 1, 1, 1, 2, 3]))]
        calls = tuple(call for call, _ in wanted)
        text = " ".join(part for part in parts if part)
        approved = self.domain == "ops" and self.random.random() < 0.05
        reply = self._add(Kind.REPLY, Message(role="assistant", text=text, tool_calls=calls))
        if approved:
            self._approval(calls[0])
        for call, argument in wanted:
            self._result(reply.seq, call, argument)

    def _answer(self) -> None:
        parts = [self._fill(self.random.choice(phrases.ANSWERS)), self._finding()]
        if self.random.random() < 0.5:
            parts.append(self._decision(self.forms.decisions_by_agent))
        if self.random.random() < 0.3:
            parts.append(self._ask(self.forms.asks_by_agent))
        if self._closing and self.random.random() < 0.7:
            parts.append(self._closing.pop(0))
        if self.random.random() < 0.3:
            parts.append(f"To see it yourself: `{build_shell_line(self.world)}`")
        between = self.random.choice([" ", "\n", "\n- "])
        text = between.join(part for part in parts if part) + self._lists()
        self._add(Kind.REPLY, Message(role="assistant", text=text))

    def _lists(self) -> str:
        """Sometimes add lists under a heading, which alone says what their lines mean."""
        text = ""
        if self.random.random() < 0.15:
            first, second = self.random.sample(self.words["options"], 2)
            line = f"{first} for {self.random.choice(self.words['things'])} and {second} elsewhere"
            text += f"\n\n{self._fill(self.random.choice(phrases.DECISION_HEADINGS))}\n- {line}"
            self.truth.decisions.append(Planted(line, self._seq))
        if self.random.random() < 0.15 and self._todos:
            todo = self._todos.pop()
            text += f"\n\n{self.random.choice(phrases.OPEN_HEADINGS)}\n* {todo}"
            self.truth.asks.append(Planted(todo, self._seq))
        return text

    def _call(self) -> tuple[ToolCall, str]:
        tool, arguments, key = self._arguments()
        identity = f"call_{self.random.getrandbits(48):012x}"
        return ToolCall(id=identity, tool=tool, arguments=json.dumps(arguments)), key

    def _arguments(self) -> tuple[str, dict[str, object], str]:
        """Return a tool, its arguments, and the argument that is the call's subject."""
        tool, *names = self.random.choice(self.words["tools"]).split()
        values = [self._value(name) for name in names]
        return tool, dict(zip(names, values, strict=True)), values[0].splitlines()[0][:60]

    def _value(self, name: str) -> str:
        world = self.world
        if name in ("command", "cmd"):
            return build_shell_line(world)
        if name == "path":
            return world.path()
        if name == "id":
            return world.known_id()
        if name == "sql":
            words = [world.word() for _ in range(3)]
            return f"select {words[0]}, count(*) from {words[1]} group by {words[2]}"  # noqa: S608 - never run
        if name == "query":
            return f"{world.word()} {world.word()}"
        lines = self.random.randint(2, 20)
        return "\n".join(" ".join(world.word() for _ in range(8)) for _ in range(lines))

    def _result(self, reply_seq: int, call: ToolCall, argument: str) -> None:
        dice, outcome = self.random.random(), ""
        if dice < 0.08:
            text, outcome = build_failed_output(self.world)
        elif dice < 0.4 or call.tool in ("edit", "note", "send_reply"):
            text = build_short_output(self.world, self._number)
            outcome = text.splitlines()[0]
        elif dice < 0.75:
            text = build_long_output(self.world, self.random.randint(20, 60))
        else:
            text = build_long_output(self.world, self.random.randint(80, 250))
        message = Message(role="tool", text=text, call_id=call.id, tool=call.tool)
        outcome = outcome or find_failures(text)
        entry = self._add(Kind.TOOL_RESULT, message)
        self.truth.pairs.append(Pair(call.id, reply_seq, entry.seq, call.tool, argument, outcome))

    def _approval(self, call: ToolCall) -> None:
        """Ask a person, who decides."""
        who, why = self.random.choice(phrases.PEOPLE), self.random.choice(self.words["reasons"])
        asked = len(self.items)
        identity = f"{asked}-0"
        self._note(
            Kind.ASKED,
            {"id": identity, "tool": call.tool, "arguments": call.arguments[:120], "asked_ms": 0},
        )
        approve = self.random.random() < 0.8
        entry = self._note(
            Kind.DECIDED, {"id": identity, "approve": approve, "by": who, "reason": why}
        )
        verb = "approved" if approve else "denied"
        self.truth.decisions.append(Planted(f"{who} {verb} {call.tool}", entry.seq))
        self.truth.decisions.append(Planted(why, entry.seq))

    # Sentences.

    def _request(self) -> str:
        return self._fill(self.random.choice(phrases.REQUESTS))

    def _finding(self) -> str:
        return self._fill(self.random.choice(phrases.FINDINGS))

    def _decision(self, forms: list[str]) -> str:
        text = self._once(forms)
        self.truth.decisions.append(Planted(text, self._seq))
        return text

    def _ask(self, forms: list[str]) -> str:
        if not self._todos:
            return ""
        todo = self._todos.pop(self.random.randrange(len(self._todos)))
        text = self._fill(self.random.choice(forms)).replace("{do}", todo)
        self.truth.asks.append(Planted(text, self._seq))
        return text

    def _opening(self) -> str:
        """Return an ask that will be closed."""
        if not self._todos:
            return ""
        todo = self._todos.pop(self.random.randrange(len(self._todos)))
        ask, closing = self.random.choice(phrases.CLOSED)
        self._closing.append(closing.replace("{do}", todo))
        text = ask.replace("{do}", todo)
        self.truth.closed.append(Planted(text, self._seq))
        return text

    def _once(self, forms: list[str]) -> str:
        """Fill a template so that the sentence is unique."""
        for _ in range(50):
            text = self._fill(self.random.choice(forms))
            if text not in self._used:
                break
        self._used.add(text)
        return text

    def _pick(self, forms: list[str]) -> str:
        return self._fill(self.random.choice(forms))

    def _fill(self, form: str) -> str:
        draw, number = self.random, self._number
        x, y = draw.sample(self.words["options"], 2)
        return form.format(
            thing=draw.choice(self.words["things"]),
            symptom=draw.choice(self.words["symptoms"]),
            who=draw.choice(phrases.PEOPLE),
            why=draw.choice(self.words["reasons"]),
            x=x,
            y=y,
            do="{do}",
            metric=draw.choice(self.words["metrics"]),
            things=draw.choice(self.words["counted"]),
            n=number(str(draw.randint(1000, 99999))),
            n2=number(f"{draw.randint(1000, 999999):,}"),
            f=number(f"{draw.uniform(1, 2000):.1f}"),
            f2=number(f"{draw.uniform(1, 2000):.2f}"),
            p=number(f"{draw.uniform(1, 99):.1f}%"),
            p2=number(f"{draw.uniform(1, 99):.2f}%"),
            v=number(f"{draw.randint(1, 9)}.{draw.randint(10, 40)}.{draw.randint(0, 9)}"),
            v2=number(f"{draw.randint(1, 9)}.{draw.randint(10, 40)}.{draw.randint(10, 19)}"),
        )

    # Entries.

    @property
    def _seq(self) -> int:
        """The seq of the entry that is being written."""
        return len(self.items) + 1

    def _number(self, text: str) -> str:
        self._numbers[text] = None
        return text

    def _add(self, kind: Kind, message: Message) -> Entry:
        entry = build_entry(self._seq, kind, message, _START_MS + self._seq * _STEP_MS)
        return self._take(Item(entry, message))

    def _note(self, kind: Kind, data: dict[str, object]) -> Entry:
        time_ms = _START_MS + self._seq * _STEP_MS
        entry = Entry(
            seq=self._seq, kind=kind, time_ms=time_ms, size_bytes=len(json.dumps(data)), data=data
        )
        return self._take(Item(entry))

    def _take(self, item: Item) -> Entry:
        """Add an entry; the evidence that was drawn for it and occurs in it counts as planted."""
        self.items.append(item)
        whole, seq = format_item(item), item.entry.seq
        for drawn, planted in (
            (self.world.paths, self.truth.paths),
            (self.world.commands, self.truth.commands),
            (self.world.ids, self.truth.ids),
            (self._numbers, self.truth.numbers),
        ):
            for text in drawn:
                if text in whole:
                    planted.setdefault(text, seq)
            drawn.clear()
        return item.entry


def format_item(item: Item) -> str:
    """Return the text of an entry, and the values of its arguments."""
    if item.message is None:
        return json.dumps(item.entry.data)
    values = [json.loads(call.arguments).values() for call in item.message.tool_calls]
    return "\n".join([item.message.text, *(str(value) for each in values for value in each)])
