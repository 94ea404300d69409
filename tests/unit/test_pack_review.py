"""Payloads and packs of unusual shapes: what is written is read back, at a bounded cost."""

import pytest

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
