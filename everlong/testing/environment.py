"""`EverlongEnv`: a Temporal server and a store for tests, and the workers that a test runs there.

Threads of different tests do not meet: each worker has its own task queue, and each thread its own id. A
worker runs in the event loop of its test, so tools and tests may share events and connections.
"""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from everlong.agents import Agent, Model, Reply, TakeText, Tool, can_stream
from everlong.errors import ConfigError, ModelRefused, ModelUnavailable
from everlong.models import Message
from everlong.plugin import EverlongPlugin
from everlong.policy import Policy
from everlong.storage import BlobStore
from everlong.testing.driven_thread import DrivenThread, FailureWatch
from everlong.testing.fake_approver import FakeApprover
from everlong.testing.recorded_spans import RecordedSpans
from everlong.testing.scripted_model import Script, ScriptedModel

ModelSource: TypeAlias = Script | Model
"""What replies in place of an agent's model: a script, or a model."""


class RunAgent(Protocol):
    """Type of the fixture `run_agent`: the method of that name of `EverlongEnv`."""

    def __call__(
        self,
        agent: Agent,
        script: ModelSource | Mapping[str, ModelSource] | None = None,
        *,
        approver: FakeApprover | None = None,
        policy: Policy | None = None,
        thread_id: str = "",
        seconds_max: float = 30.0,
        plugin: Mapping[str, Any] | None = None,
        **worker: Any,
    ) -> AbstractAsyncContextManager[DrivenThread]:
        """See `EverlongEnv.run_agent`."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EverlongEnv:
    """A running server and a store. The fixture `everlong_env` has one for the whole session."""

    address: str
    """Host and port of the server."""
    store: str | BlobStore
    namespace: str = "default"

    async def connect(self, *, spans: RecordedSpans | None = None, **plugin: Any) -> Client:
        """Connect a client with the plugin, for tests of your own workflows.

        `plugin` are arguments of `EverlongPlugin`, such as `agents`; the store is this environment's.
        `spans` records the spans of the client and its workers.
        """
        options: dict[str, Any] = {"store": self.store, **plugin}
        if spans is not None:
            options["tracer_provider"] = spans.provider
        return await Client.connect(
            self.address, namespace=self.namespace, plugins=[EverlongPlugin(**options)]
        )

    @contextlib.asynccontextmanager
    async def run_agent(
        self,
        agent: Agent,
        script: ModelSource | Mapping[str, ModelSource] | None = None,
        *,
        approver: FakeApprover | None = None,
        policy: Policy | None = None,
        thread_id: str = "",
        seconds_max: float = 30.0,
        plugin: Mapping[str, Any] | None = None,
        **worker: Any,
    ) -> AsyncIterator[DrivenThread]:
        """Run a worker with an agent, and yield a thread of it, which starts with its first message.

        Args:
            agent: The agent as your program has it, with its tools and sub-agents.
            script: What replies in place of its model: a function or a list of replies (see
                `ScriptedModel`), a `RecordedModel`, or any `Model`. With sub-agents, a mapping of these
                by agent name. Without it the agent's own model replies, unless that is a provider's
                name: a test never calls a provider by accident.
            approver: Decides the thread's tool calls that need an approval. Calls of sub-agents have
                threads of their own; decide them with `thread.other(id)`.
            policy: The policy of the agent, in place of its own.
            thread_id: Id of the thread; a new one by default.
            seconds_max: Bound of each wait.
            plugin: More arguments of `EverlongPlugin`.
            worker: More arguments of the SDK's `Worker`.

        At the end the thread is terminated and the worker is closed, also if the test has failed.

        """
        failures, spans = FailureWatch(), RecordedSpans()
        made = _Casting(script, failures).cast(agent)
        if policy is not None:
            made = dataclasses.replace(made, policy=policy)
        client = await self.connect(spans=spans, agents=[made], **(plugin or {}))
        task_queue = f"everlong-test-{uuid.uuid4().hex[:12]}"
        runner = _WorkerRunner(client, task_queue, worker)
        thread = DrivenThread(
            client,
            thread_id or f"{agent.name}-{uuid.uuid4().hex[:12]}",
            task_queue=task_queue,
            agent=agent.name,
            seconds_max=seconds_max,
            spans=spans,
            failures=failures,
            restart=runner.restart,
        )
        approving = _start_approving(approver, thread, failures)
        try:
            async with runner:
                yield thread
        finally:
            approving.cancel()
            await asyncio.gather(approving, return_exceptions=True)
            with contextlib.suppress(RPCError):  # It has not started, or has ended.
                await client.get_workflow_handle(thread.id).terminate("the test has ended")
        if failures.error is not None and not failures.is_raised:  # No wait was there to raise it.
            raise failures.error


class _WorkerRunner:
    """A worker that can be replaced by another."""

    def __init__(self, client: Client, task_queue: str, options: Mapping[str, Any]) -> None:
        self._client = client
        self._task_queue = task_queue
        self._options = options
        self._worker: Worker | None = None

    async def __aenter__(self) -> None:
        self._worker = Worker(self._client, task_queue=self._task_queue, **self._options)
        await self._worker.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.__aexit__(kind, *error)

    async def restart(self) -> None:
        """Stop the worker, and start another."""
        await self.__aexit__(None, None, None)
        await self.__aenter__()


def _start_approving(
    approver: FakeApprover | None, thread: DrivenThread, failures: FailureWatch
) -> asyncio.Task[None]:
    async def approve() -> None:
        try:
            if approver is not None:
                await approver.watch(thread)
        except Exception as error:  # noqa: BLE001 - the rule is the test's code; its error is reported
            failures.report(error)

    return asyncio.create_task(approve())


class _Casting:
    """Gives an agent and its sub-agents the models of a test."""

    def __init__(
        self,
        script: ModelSource | Mapping[str, ModelSource] | None,
        failures: FailureWatch,
    ) -> None:
        self._by_name = script if isinstance(script, Mapping) else None
        self._script = None if isinstance(script, Mapping) else script
        self._failures = failures
        self._made: dict[int, Agent] = {}
        self._used: set[str] = set()

    def cast(self, agent: Agent) -> Agent:
        """Return the agent with the models of the test. Raises `ConfigError` for an unknown name."""
        made = self._replace(agent, self._script)
        if unknown := sorted(set(self._by_name or ()) - self._used):
            raise ConfigError(
                f"there is no agent {unknown[0]!r}; {agent.name!r} and its sub-agents are "
                f"{sorted(each.name for each in agent.family)}"
            )
        return made

    def _replace(self, agent: Agent, script: ModelSource | None) -> Agent:
        if id(agent) in self._made:
            return self._made[id(agent)]
        if self._by_name is not None and agent.name in self._by_name:
            script = self._by_name[agent.name]
            self._used.add(agent.name)
        changes: dict[str, Any] = {}
        if script is not None:
            changes.update(model=self._build_model(agent, script), model_settings={})
        elif isinstance(agent.model, str):
            raise ConfigError(
                f"agent {agent.name!r} would call {agent.model!r}. Give run_agent a script or a "
                "RecordedModel in its place; for sub-agents, a mapping by agent name."
            )
        tools: list[Tool | Agent] = [
            self._replace(each, None) if isinstance(each, Agent) else each for each in agent.tools
        ]
        made = self._made[id(agent)] = dataclasses.replace(agent, tools=tools, **changes)
        return made

    def _build_model(self, agent: Agent, script: ModelSource) -> object:
        if not callable(getattr(script, "reply", None)):
            if not callable(script) and not isinstance(script, Sequence):
                return script  # A model of pydantic-ai, or an error that `Agent` explains.
            return _WatchedModel(ScriptedModel(script), self._failures)
        bind: Callable[[Agent], Model] | None = getattr(script, "bind", None)
        return _WatchedModel(script if bind is None else bind(agent), self._failures)  # type: ignore[arg-type] # it has a reply method


class _WatchedModel:
    """A test's model, whose errors end the test instead of being retried unseen."""

    def __init__(self, model: Model, failures: FailureWatch) -> None:
        self._model = model
        self._failures = failures
        self.model_id = getattr(model, "model_id", "") or type(model).__name__
        """Name of the model, in spans."""

    async def reply(
        self, instructions: str, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> Reply:
        """See `Model`."""
        return await self._watch(self._model.reply(instructions, messages, tools))

    async def stream_reply(
        self,
        instructions: str,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        on_text: TakeText,
    ) -> Reply:
        """See `StreamingModel`. A model that cannot stream gives the whole reply."""
        model = self._model
        if not can_stream(model):
            return await self.reply(instructions, messages, tools)
        return await self._watch(model.stream_reply(instructions, messages, tools, on_text))

    async def _watch(self, replying: Awaitable[Reply]) -> Reply:
        try:
            return await replying
        except (ModelUnavailable, ModelRefused):
            raise  # A script plays a provider that fails.
        except Exception as error:
            self._failures.report(error)
            raise
