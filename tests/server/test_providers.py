"""A thread whose model is a provider's: real client, real server of ours, the provider's format."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter

from everlong import Agent, tool
from everlong.agents.providers import ProviderModel
from everlong.embedded import TemporalServer
from everlong.models import thread_key
from everlong.storage import BlobStore
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from everlong.storage.segments import MESSAGE_KINDS
from tests.support import fake_provider
from tests.support.fake_provider import ProviderServer, Response
from tests.support.threads import Threads, open_threads, read_journal

SECRET = "sk-very-secret"


@tool
def read(path: str) -> str:
    """Read a file.

    Args:
        path: which one
    """
    return f"contents of {path}"


@pytest.fixture(params=["openai:gpt-5", "anthropic:claude-sonnet-5"])
async def agent(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Agent]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    made = Agent(name="ops", model=request.param, instructions="Be brief.", tools=[read])
    yield made
    assert isinstance(made.resolved_model, ProviderModel)
    await made.resolved_model.close()


def replies(agent: Agent, *steps: tuple[str, fake_provider.Calls]) -> list[fake_provider.Json]:
    build_reply = (
        fake_provider.responses
        if str(agent.model).startswith("openai")
        else fake_provider.anthropic
    )
    return [build_reply(text, calls) for text, calls in steps]


def configure_provider(monkeypatch: pytest.MonkeyPatch, provider: ProviderServer) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)


async def bodies(threads: Threads, thread_id: str) -> list[object]:
    entries = await read_journal(threads.client, PackStore(threads.store), thread_id)
    journal = Journal(PackStore(threads.store), thread_key(threads.client.namespace, thread_id))
    return list(await journal.bodies([each for each in entries if each.kind in MESSAGE_KINDS]))


@pytest.mark.guarantee(51)
async def test_a_thread_works_with_a_providers_model_through_a_rate_limit_and_an_outage(
    server: TemporalServer,
    store: BlobStore,
    thread_id: str,
    agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, answer = replies(
        agent, ("", [("call_1", "read", '{"path": "/etc/hosts"}')]), ("It is there.", [])
    )
    limited = Response(status=429, body=b"{}", headers={"retry-after": "2"})
    outage = Response(status=503, body=b"{}")
    async with ProviderServer(limited, call, outage, answer) as provider:
        configure_provider(monkeypatch, provider)
        async with open_threads(server.address, store, agent) as threads, threads.worker():
            began = time.monotonic()
            await threads.send(thread_id, "Is localhost known?")
            status = await threads.wait_for_answers(thread_id, 1)
            conversation = await threads.conversation(thread_id)
            stored = await bodies(threads, thread_id)
    assert time.monotonic() - began >= 2, "the provider's Retry-After was waited for"
    # One request for each attempt of the activity: the client itself does not try again.
    assert len(provider.requests) == 4
    assert [(message.role, message.text) for message in conversation] == [
        ("user", "Is localhost known?"),
        ("assistant", ""),
        ("tool", "contents of /etc/hosts"),
        ("assistant", "It is there."),
    ]
    assert status.counters.steps == 2
    assert status.counters.tokens > 0
    assert status.counters.cost_usd > 0
    assert len(ModelMessagesTypeAdapter.validate_python(stored)) == 4, "pydantic-ai reads them"


@pytest.mark.guarantee(51)
async def test_a_bad_key_ends_the_turn_at_once_and_is_never_shown(
    server: TemporalServer,
    store: BlobStore,
    thread_id: str,
    agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = Response(
        status=401, body={"error": {"message": f"bad key {SECRET}"}, "type": "error"}
    )
    async with ProviderServer(refused) as provider:
        configure_provider(monkeypatch, provider)
        async with open_threads(server.address, store, agent) as threads, threads.worker():
            await threads.send(thread_id, "hi")
            status = await threads.wait_for_answers(thread_id, 1)
            history = await threads.client.get_workflow_handle(thread_id).fetch_history()
    assert len(provider.requests) == 1
    assert "API_KEY" in status.last_failure
    assert SECRET not in status.last_failure
    assert SECRET not in caplog.text
    assert SECRET not in history.to_json()


async def test_a_worker_closes_its_models_and_the_next_one_opens_them_again(
    server: TemporalServer,
    store: BlobStore,
    thread_id: str,
    agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ProviderServer(*replies(agent, ("Here.", []))) as provider:
        configure_provider(monkeypatch, provider)
        async with open_threads(server.address, store, agent) as threads:
            async with threads.worker():
                pass
            assert "resolved_model" not in vars(agent), "what was not used is not built"
            for number in (1, 2):
                async with threads.worker():
                    await threads.send(thread_id, "hi")
                    await threads.wait_for_answers(thread_id, number)
                    assert provider.connections == 1
                async with asyncio.timeout(90):
                    while provider.connections:
                        await asyncio.sleep(0.02)
    assert len(provider.requests) == 2


async def test_an_invalid_reply_is_requested_again(
    server: TemporalServer,
    store: BlobStore,
    thread_id: str,
    agent: Agent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [answer] = replies(agent, ("Here.", []))
    async with ProviderServer(Response(body=b"<html>"), answer) as provider:
        configure_provider(monkeypatch, provider)
        async with open_threads(server.address, store, agent) as threads, threads.worker():
            await threads.send(thread_id, "hi")
            await threads.wait_for_answers(thread_id, 1)
            assert (await threads.conversation(thread_id))[-1].text == "Here."
    assert len(provider.requests) == 2
