"""Query cache: a thread without new events is not queried again."""

from types import SimpleNamespace
from typing import Any

import pytest

from everlong.client.status import QueryCache, get_answer, keep_answers


def description(thread_id: str = "a", run_id: str = "run-1", events: int = 9) -> Any:
    return SimpleNamespace(id=thread_id, run_id=run_id, history_length=events)


class Worker:
    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self) -> int:
        self.asked += 1
        return self.asked


class Client:
    """The client that owns a cache."""


async def test_a_thread_without_new_events_is_queried_once() -> None:
    cache, worker = QueryCache(), Worker()
    assert [await cache.get("status", description(), worker) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("query", "changed"),
    [
        ("status", description(events=10)),
        ("status", description(run_id="run-2")),
        ("status", description(thread_id="b")),
        ("pending", description()),
    ],
)
async def test_new_events_another_run_thread_or_query_are_not_cached(
    query: str, changed: Any
) -> None:
    cache, worker = QueryCache(), Worker()
    await cache.get("status", description(), worker)
    assert await cache.get(query, changed, worker) == 2


async def test_a_failed_query_is_repeated() -> None:
    cache, worker = QueryCache(), Worker()

    async def fail() -> int:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await cache.get("status", description(), fail)
    assert await cache.get("status", description(), worker) == 1


async def test_cached_answers_are_bounded_and_the_oldest_is_evicted() -> None:
    cache, worker = QueryCache(answers_max=2), Worker()
    for thread_id in ("a", "b", "a", "c"):
        await cache.get("status", description(thread_id), worker)
    assert worker.asked == 3
    await cache.get("status", description("a"), worker)
    assert worker.asked == 3
    await cache.get("status", description("b"), worker)
    assert worker.asked == 4


async def test_only_a_caching_client_has_a_cache() -> None:
    worker, keeps, asks = Worker(), Client(), Client()
    keep_answers(keeps)  # type: ignore[arg-type]
    for client in (asks, asks, keeps, keeps):
        await get_answer(client, "status", description(), worker)  # type: ignore[arg-type]
    assert worker.asked == 3
