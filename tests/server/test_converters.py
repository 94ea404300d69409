"""Other converters and codecs in addition to ours, and fields that no codec may change."""

import dataclasses
import datetime
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from everlong import EverlongPlugin
from everlong.embedded import TemporalServer
from everlong.errors import KeyMissing
from tests.support import payload_workflows
from tests.support.fake_stores import CountingStore
from tests.support.payload_workflows import PATIENCE, Value, Xor, letters, list_encodings, noise

HISTORY_BYTES_MAX = 20_000
CONVERTERS = {
    "encoded failures": dataclasses.replace(
        DataConverter.default, failure_converter_class=DefaultFailureConverterWithEncodedAttributes
    ),
    "inner codec": dataclasses.replace(DataConverter.default, payload_codec=Xor()),
    "pydantic": pydantic_data_converter,
    "all three": dataclasses.replace(
        pydantic_data_converter,
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
        payload_codec=Xor(),
    ),
}


class Report(BaseModel):
    """A model that a team with the pydantic converter passes around."""

    day: datetime.date
    text: str


@activity.defn
async def sign(report: Report) -> Report:
    return report.model_copy(update={"text": report.text[::-1]})


@workflow.defn
class Review:
    @workflow.run
    async def run(self, report: Report) -> Report:
        return await workflow.execute_activity(sign, report, start_to_close_timeout=PATIENCE)


async def history_bytes(handle: WorkflowHandle[Any, Any]) -> int:
    return sum(event.ByteSize() for event in (await handle.fetch_history()).events)


@pytest.mark.guarantee(24)
@pytest.mark.parametrize(
    "value", [letters("converters"), noise("converters")], ids=["text", "bytes"]
)
@pytest.mark.parametrize("name", CONVERTERS)
async def test_other_converters_and_codecs_stay_in_order(
    server: TemporalServer, thread_id: str, name: str, value: Value
) -> None:
    store = CountingStore()
    clients = [
        await Client.connect(
            server.address, data_converter=CONVERTERS[name], plugins=[EverlongPlugin(store=store)]
        )
        for _ in range(2)
    ]
    handles = {}
    async with Worker(
        clients[0],
        task_queue=thread_id,
        workflows=[
            payload_workflows.Echo,
            payload_workflows.Failing,
            payload_workflows.OneActivity,
            payload_workflows.Parent,
        ],
        activities=[payload_workflows.echo, payload_workflows.refuse],
    ):
        runs: dict[str, tuple[Any, list[Value]]] = {
            "parent": (payload_workflows.Parent.run, [value]),
            "activity": (payload_workflows.OneActivity.run, ["echo", value]),
            "activity failure": (payload_workflows.OneActivity.run, ["refuse", value]),
            "failure": (payload_workflows.Failing.run, [value]),
        }
        for run, (method, args) in runs.items():
            handles[run] = await clients[1].start_workflow(
                method, args=args, id=f"{thread_id}-{run}", task_queue=thread_id
            )
        for run in ["parent", "activity", "activity failure"]:
            assert await handles[run].result() == value, run
        with pytest.raises(WorkflowFailureError) as failed:
            await handles["failure"].result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.message == "it ends here"
        assert failed.value.cause.details == (value,)
    assert store.puts > 0
    last = (await handles["failure"].fetch_history()).events[-1]
    shown = last.workflow_execution_failed_event_attributes.failure.message
    encoded = name in ("encoded failures", "all three")
    assert shown == ("Encoded failure" if encoded else "it ends here")
    for run, handle in handles.items():
        assert await history_bytes(handle) < HISTORY_BYTES_MAX, run


async def test_pydantic_models_are_offloaded_and_come_back(
    server: TemporalServer, thread_id: str
) -> None:
    store = CountingStore()
    client = await Client.connect(
        server.address,
        data_converter=pydantic_data_converter,
        plugins=[EverlongPlugin(store=store)],
    )
    report = Report(day=datetime.date(2024, 2, 29), text=letters("report"))
    async with Worker(client, task_queue=thread_id, workflows=[Review], activities=[sign]):
        handle = await client.start_workflow(Review.run, report, id=thread_id, task_queue=thread_id)
        assert await handle.result() == Report(day=report.day, text=report.text[::-1])
    assert store.puts > 0
    assert await history_bytes(handle) < HISTORY_BYTES_MAX


@pytest.mark.guarantee(20)
async def test_keys_hide_all_values_and_a_rotation_keeps_them_readable(
    server: TemporalServer, thread_id: str
) -> None:
    store = CountingStore()
    secret = "the secret of the house"
    old, new = {"old": noise("old", 32)}, {"new": noise("new", 32)}
    client, rotated, stranger = [
        await Client.connect(server.address, plugins=[EverlongPlugin(store=store, keys=keys)])
        for keys in (old, {**new, **old}, new)
    ]
    async with Worker(
        client,
        task_queue=thread_id,
        workflows=[payload_workflows.OneActivity],
        activities=[payload_workflows.echo],
    ):
        for suffix, value in {"small": secret, "large": secret + letters("keys")}.items():
            handle = await client.start_workflow(
                payload_workflows.OneActivity.run,
                args=["echo", value],
                id=f"{thread_id}-{suffix}",
                task_queue=thread_id,
            )
            assert await handle.result() == value
            assert await rotated.get_workflow_handle(handle.id).result() == value
            with pytest.raises(KeyMissing, match="old"):
                await stranger.get_workflow_handle(handle.id).result()
            events = (await handle.fetch_history()).events
            assert all(b"everlong" in encoding for encoding in list_encodings(events))
            assert not any(secret.encode() in event.SerializeToString() for event in events)
    stored = [await store.get(info.key) async for info in store.list("")]
    assert stored
    assert not any(secret.encode() in data for data in stored)


class TaggingInterceptor(Interceptor):
    """Sends a header with each workflow, as tracing does."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 (the SDK's name)
        return TaggingOutbound(next)


class TaggingOutbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 (the SDK's name)
        input.headers = {**input.headers, "tag": TAG}
        return await super().start_workflow(input)


TAG = DataConverter.default.payload_converter.to_payload("tag " * 500)
AGENT = SearchAttributeKey.for_keyword("EverlongAgent")


@workflow.defn
class ReadTag:
    """Returns the header's payload, as it reached the workflow."""

    @workflow.run
    async def run(self, value: str) -> bytes:
        workflow.upsert_search_attributes([AGENT.value_set("b" * 200)])
        return workflow.info().headers["tag"].SerializeToString(deterministic=True)


@pytest.mark.guarantee(24)
async def test_headers_and_search_attributes_are_left_alone(
    server: TemporalServer, thread_id: str
) -> None:
    # With nothing allowed inline, whatever passes through our codec is a ref.
    client = await Client.connect(
        server.address,
        interceptors=[TaggingInterceptor()],
        plugins=[EverlongPlugin(store="memory:", inline_bytes_max=0)],
    )
    async with Worker(client, task_queue=thread_id, workflows=[ReadTag]):
        handle = await client.start_workflow(
            ReadTag.run,
            "small",
            id=thread_id,
            task_queue=thread_id,
            search_attributes=TypedSearchAttributes([SearchAttributePair(AGENT, "a" * 200)]),
        )
        assert Payload.FromString(await handle.result()) == TAG
    started = await first_event(handle)
    assert started.header.fields["tag"] == TAG
    agent = started.search_attributes.indexed_fields[AGENT.name]
    assert agent.metadata["encoding"] == b"json/plain"
    assert agent.data == b'"' + b"a" * 200 + b'"'
    assert b"everlong" in started.input.payloads[0].metadata["encoding"]
    described = await handle.describe()
    assert described.typed_search_attributes[AGENT] == "b" * 200


async def first_event(
    handle: WorkflowHandle[Any, Any],
) -> WorkflowExecutionStartedEventAttributes:
    history = await handle.fetch_history()
    return history.events[0].workflow_execution_started_event_attributes


async def test_a_long_description_of_a_workflow_comes_back(
    server: TemporalServer, thread_id: str
) -> None:
    store = CountingStore()
    client = await Client.connect(server.address, plugins=[EverlongPlugin(store=store)])
    details = letters("details")
    handle = await client.start_workflow(
        payload_workflows.Echo.run,
        "small",
        id=thread_id,
        task_queue=thread_id,
        static_summary="a summary",
        static_details=details,
    )
    described = await handle.describe()
    await handle.terminate()
    assert await described.static_summary() == "a summary"
    assert await described.static_details() == details
    assert store.puts > 0
    assert described.raw_description.ByteSize() < HISTORY_BYTES_MAX
