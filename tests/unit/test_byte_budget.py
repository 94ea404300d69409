"""The budget of bytes: never more than it has, in order, and nothing is lost to a cancelled waiter."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from everlong.storage.pack_store import ByteBudget


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 150), st.booleans()), min_size=1, max_size=20))
async def test_waits_and_cancellations_always_return_the_bytes(
    shares: list[tuple[int, bool]],
) -> None:
    budget, most = ByteBudget(100), 0

    async def work(size_bytes: int) -> None:
        nonlocal most
        async with budget.reserve(size_bytes):
            most = max(most, budget.taken_bytes)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work(size_bytes)) for size_bytes, _ in shares]
    await asyncio.sleep(0)
    for task, (_, is_cancelled) in zip(tasks, shares, strict=True):
        if is_cancelled:
            task.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert most <= 100
    assert budget.taken_bytes == 0


async def test_small_requests_do_not_overtake_a_large_one() -> None:
    budget, order = ByteBudget(100), list[int]()

    async def work(size_bytes: int) -> None:
        async with budget.reserve(size_bytes):
            order.append(size_bytes)

    async with budget.reserve(60):
        tasks = [asyncio.create_task(work(size_bytes)) for size_bytes in (300, 10, 20)]
        done, _ = await asyncio.wait(tasks, timeout=0.05)
        assert not done
    await asyncio.gather(*tasks)
    assert order == [300, 10, 20]
