"""Retention: its text form, and how long an encoder may refer to a pack."""

import pytest

from everlong import limits
from everlong.codecs.offload import Offloader
from everlong.codecs.refs import parse_ref
from everlong.codecs.thread_memory import ThreadMemory
from everlong.policy import QUARANTINE_SECONDS_MIN, Retention, parse_retention, parse_seconds
from everlong.storage.memory import MemoryBlobStore
from everlong.storage.pack_store import PackStore, pack_key
from tests.support.journal_builder import THREAD
from tests.support.sample_payloads import noise, payload, text


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21600), ("1.5d", 129600)]
)
def test_durations_are_parsed(written: str, seconds: float) -> None:
    assert parse_seconds(written) == seconds


@pytest.mark.parametrize("written", ["", "6", "h", "-1d", "6 h", "1w", "nan", "1e3s"])
def test_an_invalid_duration_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_seconds(written)


def test_a_retention_is_parsed_from_one_line() -> None:
    assert parse_retention("") == Retention()
    assert parse_retention("journal=2d, archive=never") == Retention(journal_seconds=172_800)
    assert parse_retention("archive=1h,quarantine=2d") == Retention(
        archive_seconds=3600, quarantine_seconds=172_800
    )


@pytest.mark.parametrize("written", ["payload", "other=1d", "payload=never", "journal=-1d"])
def test_an_invalid_retention_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_retention(written)


def test_a_quarantine_outlasts_an_encoders_references() -> None:
    assert not Retention().find_problem()
    assert QUARANTINE_SECONDS_MIN > limits.ENCODER_PACK_SECONDS_MAX
    assert Retention(quarantine_seconds=QUARANTINE_SECONDS_MIN - 1).find_problem()
    assert not Retention(quarantine_seconds=QUARANTINE_SECONDS_MIN).find_problem()


def test_a_pack_in_continuous_use_is_rewritten_within_a_day() -> None:
    memory = ThreadMemory()
    data = text(20_000)
    now = 0.0
    memory.commit(memory.plan(b"e", data, "", now), b"n" * 32, now)
    written = 0
    step = limits.ENCODER_SECONDS_MAX / 2
    while now < 2.5 * limits.ENCODER_PACK_SECONDS_MAX:
        now += step  # As in a task that is retried for days: nothing reads its packs.
        plan = memory.plan(b"e", data, "", now)
        if plan.same_as is None:
            assert not plan.contents.sources
            memory.commit(plan, b"n" * 32, now)
            written += 1
    assert written == 2


async def test_a_pack_without_own_bytes_is_rewritten_within_a_day() -> None:
    store, now, stored_at = MemoryBlobStore(), 0.0, dict[str, float]()
    put = store.put

    async def noted(key: str, data: bytes) -> None:
        stored_at[key] = now
        await put(key, data)

    store.put = noted  # type: ignore[method-assign]
    worker, other = (Offloader(PackStore(store)) for _ in range(2))
    worker._memory._clock = other._memory._clock = lambda: now
    whole = noise(300_000)
    part = payload(whole[:290_000])  # The pack of the whole holds all of it.
    inputs = []
    for number in range(2):  # Another worker's payloads go on from the whole, in its pack.
        await other.write(THREAD, payload(whole), whole)
        more = whole + noise(30_000, number)
        inputs.append(parse_ref((await other.write(THREAD, payload(more), more))[0]))
        other._memory.forget(THREAD)
    await worker.write(THREAD, payload(whole), whole)
    oldest = 0.0
    while now < 2.5 * limits.ENCODER_PACK_SECONDS_MAX:
        now += limits.ENCODER_SECONDS_MAX / 2
        if now % (20 * limits.ENCODER_SECONDS_MAX) == 0 and inputs:
            # An activity reads its input: so the whole's pack is there, and the part's may be gone.
            await worker.read(inputs.pop(), learn=True)
        ref, _ = await worker.write(THREAD, part, part.data)  # A task that is tried again for days.
        oldest = max(oldest, now - stored_at[pack_key(THREAD, parse_ref(ref).pack)])
    assert 0 < oldest <= limits.ENCODER_PACK_SECONDS_MAX
