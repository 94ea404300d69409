"""Inline budget that the activations of one workflow task share."""

import random

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import (
    ActivityTaskScheduledEventAttributes,
    HistoryEvent,
)
from temporalio.converter import NexusSerializationContext, WorkflowSerializationContext

from everlong import limits
from everlong.codecs import EverlongCodec
from everlong.codecs.budget import BUDGET, CompletionBudget, TaskBudget
from everlong.codecs.refs import ENCODING as REF_ENCODING
from everlong.errors import PayloadTooLarge
from everlong.interceptors.run_history import RunHistory
from tests.support.fake_stores import CountingStore

MAX = limits.COMPLETION_BYTES_MAX


def payload(size: int, seed: int = 0) -> Payload:
    data = random.Random(seed).randbytes(size)
    return Payload(metadata={"encoding": b"binary/plain"}, data=data)


async def encode(
    codec: EverlongCodec, budget: CompletionBudget, calls: list[list[Payload]]
) -> list[Payload]:
    token = BUDGET.set(budget)
    try:
        return [each for call in calls for each in await codec.encode(call)]
    finally:
        BUDGET.reset(token)


def codec_over(store: CountingStore) -> EverlongCodec:
    context = WorkflowSerializationContext(namespace="default", workflow_id="some")
    return EverlongCodec(store).with_context(context)


@pytest.mark.guarantee(28)
async def test_a_replay_writes_nothing_while_its_values_fit() -> None:
    store = CountingStore()
    calls = [[payload(200_000, n)] for n in range(15)]
    encoded = await encode(codec_over(store), CompletionBudget(replaying=True), calls)
    assert encoded == [each for call in calls for each in call]
    assert store.puts == 0


@pytest.mark.guarantee(27)
@pytest.mark.parametrize(
    "calls",
    [
        [[payload(200_000, n)] for n in range(30)],
        [[payload(200_000, n) for n in range(30)]],
        [[payload(2_100_000)]],
        [[payload(20_000_000)]],
    ],
    ids=["a completion", "a call", "a payload", "a large payload"],
)
async def test_oversized_values_of_a_replay_are_offloaded(
    calls: list[list[Payload]],
) -> None:
    store = CountingStore()
    codec = codec_over(store)
    encoded = await encode(codec, CompletionBudget(replaying=True), calls)
    assert sum(each.ByteSize() for each in encoded) <= MAX + 200 * len(encoded)
    refs = [each for each in encoded if each.metadata["encoding"] == REF_ENCODING]
    assert len(refs) == store.puts > 0
    assert await codec.decode(encoded) == [each for call in calls for each in call]


async def test_an_oversized_nexus_payload_of_a_replay_fails_the_task() -> None:
    """It may not be stored, and sending it would end the workflow."""
    context = NexusSerializationContext("endpoint", "service", "operation")
    codec = EverlongCodec(CountingStore()).with_context(context)
    with pytest.raises(PayloadTooLarge):
        await encode(codec, CompletionBudget(replaying=True), [[payload(2_000_000)]])


def test_activations_of_one_task_share_its_budget() -> None:
    task = TaskBudget()
    assert task.open(9, live=True).take(MAX - 100)
    # A local activity has answered.
    assert not task.open(9, live=True).take(101)
    # The answers to queries that came with the task go out with its commands.
    answers = task.open_for_answers(9, alone=False)
    assert answers.prefers_inline
    assert not answers.take(101)
    assert task.open_for_answers(9, alone=True).take(MAX)
    assert task.open(9, live=True).take(100)
    assert task.open(15, live=True).take(MAX)
    # A task that brings nothing but queries.
    assert task.open_for_answers(21, alone=False).take(MAX)
    assert not task.open_for_answers(21, alone=False).take(1)


@pytest.mark.guarantee(27)
def test_a_task_gets_the_budget_that_its_replay_left() -> None:
    task = TaskBudget()
    assert task.open(3, live=False, replaying=True).take(1_000_000)
    assert task.open(9, live=False, replaying=True).take(MAX - 1_000_000)
    assert not task.open(15, live=False).take(1)
    assert not task.open(21, live=True).take(1)
    assert task.open(27, live=True).take(MAX)


def test_commands_of_a_run_ahead_count_for_the_next_task() -> None:
    task = TaskBudget()
    assert task.open(9, live=True).take(MAX)
    assert task.open(14, live=False, replaying=True).take(MAX)
    assert not task.open(15, live=True).take(1)


def test_recorded_commands_of_a_replay_cost_no_budget() -> None:
    task = TaskBudget()
    assert task.open(3, live=False, replaying=True).take(MAX)
    assert task.open(9, live=False, replaying=True, settled=True).take(MAX)


def test_a_history_read_late_holds_earlier_commands() -> None:
    history = RunHistory()
    assert history.holds_all()
    assert not history.match_command("schedule_activity", "1")
    assert not history.match_command("schedule_activity", "2")
    assert not history.holds_all()
    for activity_id in ("1", "2"):
        assert not history.holds_all()
        attributes = ActivityTaskScheduledEventAttributes(activity_id=activity_id)
        history.add(HistoryEvent(activity_task_scheduled_event_attributes=attributes))
    assert history.holds_all()
    assert not history.match_command("schedule_activity", "1")
    assert not history.holds_all()
