"""List-passing workflows: each step sends everything so far, so a plain history grows quadratically."""

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

TIMEOUT = timedelta(seconds=30)


def noise(seed: str, size: int) -> str:
    """Return text that does not repeat and compresses to a half."""
    return hashlib.shake_256(seed.encode()).hexdigest((size + 1) // 2)[:size]


@dataclasses.dataclass
class Loop:
    steps: int
    result_bytes: int
    wait_at: int = -1
    """Before this step, wait for the signal `go`."""
    timeout_seconds: int = 30
    """After how long an activity on a worker that died is tried again."""


@activity.defn
async def next_result(messages: list[str], size: int) -> str:
    return noise(f"result {len(messages)}", size)


@workflow.defn
class ListLoop:
    """Keeps a list and passes it to an activity at every step."""

    def __init__(self) -> None:
        self._going = False
        self._messages: list[str] = []

    @workflow.run
    async def run(self, loop: Loop) -> str:
        for step in range(loop.steps):
            if step == loop.wait_at:
                await workflow.wait_condition(lambda: self._going)
            result = await workflow.execute_activity(
                next_result,
                args=[self._messages, loop.result_bytes],
                start_to_close_timeout=timedelta(seconds=loop.timeout_seconds),
            )
            self._messages.append(result)
        return digest(self._messages)

    @workflow.signal
    def go(self) -> None:
        self._going = True

    @workflow.query
    def steps(self) -> int:
        return len(self._messages)


def digest(messages: list[str]) -> str:
    return hashlib.sha256("\n".join(messages).encode()).hexdigest()


def compute_expected(loop: Loop) -> str:
    return digest([noise(f"result {i}", loop.result_bytes) for i in range(loop.steps)])


@activity.defn
async def numbered_result(number: int, size: int) -> str:
    return noise(f"result {number}", size)


@activity.defn
async def length_of(text: str) -> int:
    return len(text)


@workflow.defn
class Gatherer:
    """Collects many results at once, then waits for `go`."""

    def __init__(self) -> None:
        self._going = False
        self.gathered = 0

    @workflow.run
    async def run(self, count: int, size: int) -> str:
        results: list[str] = []
        for number in range(count):
            results.append(
                await workflow.execute_activity(
                    numbered_result, args=[number, size], start_to_close_timeout=TIMEOUT
                )
            )
            self.gathered = len(results)
        await workflow.wait_condition(lambda: self._going)
        return digest(results)

    @workflow.signal
    def go(self) -> None:
        self._going = True

    @workflow.query
    def steps(self) -> int:
        return self.gathered


@workflow.defn
class Fan:
    """Schedules all activities in one task, each with a large input."""

    @workflow.run
    async def run(self, count: int, size: int) -> int:
        lengths = await asyncio.gather(
            *(
                workflow.execute_activity(
                    length_of, noise(f"input {number}", size), start_to_close_timeout=TIMEOUT
                )
                for number in range(count)
            )
        )
        return sum(lengths)


@workflow.defn
class RollingLoop:
    """A list loop that continues as new after every step."""

    @workflow.run
    async def run(self, loop: Loop, messages: list[str]) -> str:
        if len(messages) < loop.steps:
            result = await workflow.execute_activity(
                next_result,
                args=[messages, loop.result_bytes],
                start_to_close_timeout=timedelta(seconds=loop.timeout_seconds),
            )
            workflow.continue_as_new(args=[loop, [*messages, result]])
        return digest(messages)


WORKFLOWS: list[type] = [ListLoop, RollingLoop, Gatherer, Fan]
ACTIVITIES: list[Callable[..., Any]] = [next_result, numbered_result, length_of]
