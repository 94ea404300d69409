"""Workflows that receive large values from every source of results, for tests of draining.

Imported into the workflow sandbox: keep its imports few.
"""

from datetime import timedelta

from temporalio import workflow

from tests.support.loop_workflows import length_of, noise, numbered_result

TIMEOUT = timedelta(seconds=30)
SIZE = 30_000


@workflow.defn
class Returner:
    """Returns a large value."""

    @workflow.run
    async def run(self, number: int, again: bool) -> str:
        if again:
            workflow.continue_as_new(args=[number, False])
        return noise(f"child {number}", SIZE)


@workflow.defn
class Feeder:
    """Gives an activity a large input first, which leaves a ref that no replay decodes.

    Then, at each `go`, gets large results for small inputs: from an activity, a local activity, a
    child, and a child that has continued as new.
    """

    def __init__(self) -> None:
        self._wanted = 0
        self._lengths: list[int] = []

    @workflow.run
    async def run(self, large: bool, rounds: int) -> list[int]:
        text = noise("input", SIZE) if large else "input"
        fed = await workflow.execute_activity(length_of, text, start_to_close_timeout=TIMEOUT)
        self._lengths.append(fed)
        for number in range(rounds):
            await workflow.wait_condition(lambda at=number: self._wanted > at)  # type: ignore[misc]
            await self._get_results(number)
        return self._lengths

    async def _get_results(self, number: int) -> None:
        results = [
            await workflow.execute_activity(
                numbered_result, args=[number, SIZE], start_to_close_timeout=TIMEOUT
            ),
            await workflow.execute_local_activity(
                numbered_result, args=[number, SIZE], start_to_close_timeout=TIMEOUT
            ),
            await workflow.execute_child_workflow(Returner.run, args=[number, False]),
            await workflow.execute_child_workflow(Returner.run, args=[number, True]),
        ]
        self._lengths += [len(each) for each in results]

    @workflow.signal
    def go(self) -> None:
        self._wanted += 1

    @workflow.query
    def steps(self) -> int:
        return len(self._lengths)
