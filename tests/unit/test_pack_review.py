"""Payloads and packs of unusual shapes: what is written is read back, at a bounded cost."""

import random

import pytest

from everlong import limits
from everlong.codecs import merge
from everlong.codecs.matching import Known, Run
from everlong.codecs.memory import ThreadMemory
from tests.payloads import noise
from tests.plans import Store, check


def written(store: Store, memory: ThreadMemory, data: bytes) -> bytes:
    """Write a payload, read it back, and return the name of its pack."""
    plan = memory.plan(b"", data, "", 0.0)
    check(store, memory, plan, data)
    if plan.same_as is not None:
        return plan.same_as.name
    name = store.add(plan)
    memory.commit(plan, name, 0.0)
    return name


@pytest.mark.parametrize("kept", range(1, 9))
@pytest.mark.parametrize("unit", [b" ", b"- ", b"=+=", b"01234567"])
def test_a_pattern_that_became_shorter_is_read_back(unit: bytes, kept: int) -> None:
    store, memory = Store(), ThreadMemory()
    start, end = noise(5000), noise(20_000, 1)
    written(store, memory, start + b"#" + (unit * 63)[-63:] + end)
    written(store, memory, start + unit * kept + end + noise(100, 2))


def words(size_bytes: int, chooser: random.Random) -> bytes:
    """Return text in which the same words come again, so that a dictionary saves something."""
    return b" ".join(b"word-%03d" % chooser.randrange(300) for _ in range(size_bytes // 9))


@pytest.mark.parametrize("seed", range(4))
def test_a_payload_of_too_many_runs_is_written_with_the_dictionaries_of_its_packs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXTENTS_MAX", 40)
    store, memory, chooser = Store(), ThreadMemory(), random.Random(seed)
    body = words(20_000, chooser)
    had_too_many = 0
    for _ in range(60):
        for _ in range(chooser.choice([1, 2, 5, 8])):
            at = chooser.randrange(len(body))
            cut = at + chooser.choice([0, 50])
            body = body[:at] + words(chooser.choice([30, 200, 3000]), chooser) + body[cut:]
        body += words(chooser.choice([100, 3000, 9000]), chooser)
        written(store, memory, body)
        had_too_many += len(memory._recent[-1].runs) > 30
    assert had_too_many > 5  # Or else this showed nothing.


@pytest.mark.parametrize("runs", [513, 900, 4000, 300_000])
@pytest.mark.parametrize("shape", ["equal", "growing", "mixed"])
def test_however_many_runs_a_payload_has_only_a_bounded_number_is_left(
    runs: int, shape: str
) -> None:
    pack = Known(b"n" * 32, 0, 2**32, 0.0, 0.0)
    chooser = random.Random(runs)
    lengths = {
        "equal": [1024] * runs,
        "growing": list(range(1, runs + 1)),
        "mixed": [chooser.choice([1024, 50_000]) for _ in range(runs)],
    }[shape]
    given = [
        Run(length, pack if at % 2 else None, 3 * at * 100_000) for at, length in enumerate(lengths)
    ]
    chosen = merge.choose_runs(given)
    left, was_new = 0, False
    for at, run in enumerate(given):
        is_new = run.pack is None or at in chosen
        left += not (is_new and was_new)
        was_new = is_new
    assert left <= limits.EXTENTS_MAX
    assert len(chosen) < runs
