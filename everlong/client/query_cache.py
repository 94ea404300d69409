"""Query cache: answers of threads to queries, each valid until the thread's history has new events.

A thread's state is a function of its history, so an answer stays true as long as the description of the
thread names the same run with as many events. A page that refreshes itself describes the thread each
time, which is no billed action and wakes no worker, and queries it only after it has done something.
"""

import collections
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from temporalio.client import Client, WorkflowExecutionDescription

T = TypeVar("T")

ANSWERS_MAX: Final = 1024
"""Answers kept for each client. A status has about 4 KB, so all of them take 4 MB."""

_caches: "weakref.WeakKeyDictionary[Client, QueryCache]" = weakref.WeakKeyDictionary()


class QueryCache:
    """The last answers that one client got."""

    def __init__(self, answers_max: int = ANSWERS_MAX) -> None:
        self._answers_max = answers_max
        self._answers: collections.OrderedDict[tuple[str, str], tuple[tuple[str, int], Any]] = (
            collections.OrderedDict()
        )

    async def get(
        self,
        query: str,
        description: WorkflowExecutionDescription,
        ask: Callable[[], Awaitable[T]],
    ) -> T:
        """Return the answer to a query, asking for it if the thread has new events since the last.

        The description has to be older than the answer that `ask` gets.
        """
        key = (query, description.id)
        at = (description.run_id, description.history_length)
        found = self._answers.get(key)
        if found is not None and found[0] == at:
            self._answers.move_to_end(key)
            answer: T = found[1]
            return answer
        answer = await ask()
        self._answers[key] = (at, answer)
        self._answers.move_to_end(key)
        if len(self._answers) > self._answers_max:
            self._answers.popitem(last=False)
        return answer


def keep_answers(client: Client) -> None:
    """Cache the answers that a client gets from now on. For clients that poll threads."""
    _caches.setdefault(client, QueryCache())


async def cached(
    client: Client,
    query: str,
    description: WorkflowExecutionDescription,
    ask: Callable[[], Awaitable[T]],
) -> T:
    """Return the answer to a query: from the cache of a client that keeps one."""
    cache = _caches.get(client)
    if cache is None:
        return await ask()
    return await cache.get(query, description, ask)
