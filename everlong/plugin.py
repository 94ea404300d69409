"""`EverlongPlugin`: the composition root. Give it to the client; its workers inherit it."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider
from temporalio import workflow
from temporalio.client import Client
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig, WorkflowRunner

from everlong import limits, worker_options
from everlong.activities import (
    AgentActivities,
    CheckActivities,
    NotifyActivities,
    SweepActivities,
)
from everlong.agents import Agent
from everlong.client.packs import PackSource
from everlong.client.search_attributes import AttributeWatch
from everlong.codecs import EverlongCodec
from everlong.codecs.budget import UNWATCHED
from everlong.codecs.composition import (
    INSPECTION_REMEDY,
    OuterCodec,
    check_order,
    check_outer,
    configure_converter,
    find_everlong_codec,
    inspect_codec,
    wrap_codec,
)
from everlong.errors import ConfigError, LimitReached, PluginNotOnClient
from everlong.interceptors import sdk_internals
from everlong.interceptors.activation import ActivationHook, install_hooks, pass_package_through
from everlong.interceptors.headers import (
    NexusInterceptor,
    PolicyInterceptor,
    SentTimeInterceptor,
)
from everlong.interceptors.last_worker import ThisWorker
from everlong.interceptors.prefetch import Prefetcher, PrefetchHook
from everlong.interceptors.read_mode import DrainInterceptor, DrainReader
from everlong.interceptors.resume import ContinueAsNewHook, ResumeHook, ResumeLog
from everlong.interceptors.run_history import RunHistory
from everlong.interceptors.thread_ids import ThreadIdInterceptor
from everlong.live import LiveSender, LiveServer
from everlong.notify.sinks import Notify
from everlong.policy import Policy
from everlong.storage import BlobStore
from everlong.storage.encryption_keys import KeySource
from everlong.storage.instrumented import READS
from everlong.storage.pack_store import PackStore, open_packs
from everlong.sweep import ArchivedThreads
from everlong.telemetry import Telemetry
from everlong.telemetry.metrics import record_store_call
from everlong.versions import get_sdk_version, warn_of_untested_sdk
from everlong.workflows import (
    VERSIONED,
    AgentWorkflow,
    DoctorWorkflow,
    NotifierWorkflow,
    SweeperWorkflow,
)

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)

_WORKFLOWS: Final[list[type]] = [
    AgentWorkflow,
    DoctorWorkflow,
    NotifierWorkflow,
    SweeperWorkflow,
]
_OWN_WORKFLOWS: Final = frozenset({*_WORKFLOWS, *VERSIONED.values()})
# Packages of the extra `admin` that archives need.
_ARCHIVE_PACKAGES: Final = ("pyarrow", "duckdb")
# SDK 1.35 added this option. Since then, `async with worker` waits for the clean-up of plugins.
_SDK_AWAITS_CLEAN_UP: Final = "plugin_shutdown_timeout" in WorkerConfig.__annotations__
# The SDK's default since 1.35.
_CLEAN_UP_SECONDS_MAX: Final = 60.0


@dataclasses.dataclass(frozen=True)
class _WorkerParts:
    """Parts of one worker. They use that worker's client, and end with the worker."""

    prefetcher: Prefetcher
    drain_reader: DrainReader


class EverlongPlugin(PackSource, SimplePlugin):
    """Compresses and offloads payloads, traces resumes, and runs agents.

    Args:
        store: A URL (`file:///dir`, `s3://bucket/prefix`, `memory:`) or a `BlobStore`.
        agents: Agents that workers of this client run, with their sub-agents. The codec needs none.
        policy: Default policy of agents that set none.
        mode: `read` decodes all that Everlong wrote, and writes plain payloads: for the first phase
            of a rollout, and for a rollback. Payloads are plain even if there are keys. A run that
            holds refs goes on offloading until it ends; `everlong drain` counts such runs.
        keys: Keys by id (32 bytes each), the first of which writes, or a callable that returns them.
            All stored objects and all payloads are sealed with AES-256-GCM.
        accept_unsealed: With keys, also read objects that were stored without keys.
        outer_codec: A user's codec that must stay around Everlong's, applied to refs and inline
            payloads. It needs `keys`, since bodies in the store do not pass through it. A codec that
            the client's data converter has already stays inside.
        cache_dir: A directory for cached objects, shared with other processes. Objects are also cached
            in memory, within a bound.
        inline_bytes_max: Payloads above this size, after compression, go to the store.
        encoder_bytes_max: Memory in which the encoder keeps what the threads of this process have
            stored; 128 MiB by default. It needs at least 20 KB for a thread, and 300 KB for a long one.
        decode_bytes_max: Bytes that the payloads of one call may decode to together, 512 MiB by default;
            more is rejected. Set less in a server that decodes payloads of untrusted clients.
        sticky_seconds: Time that a workflow task waits for the worker that has its workflow cached,
            before any worker may take it. Applies to every worker of this client whose `Worker` sets no
            value. If None, workers that run only agents use `limits.STICKY_SECONDS`, and others the
            SDK's default.
        nexus_offload: Offload Nexus payloads too; the other namespace then needs the same store.
        tracer_provider: Provider for spans; OpenTelemetry's global provider if None.
        meter_provider: Provider for metrics; OpenTelemetry's global provider if None.
        record_contents: Record the inputs and outputs of models and tools in their spans.
        live: The admin server to which workers send live output: the text of replies while models
            write them, and the progress of tools. Best effort; if None, models are not asked to stream.
        notify: Who gets notifications of approvals, limits and failures, and how: see `everlong.notify`.

    """

    def __init__(
        self,
        *,
        store: str | BlobStore,
        agents: Sequence[Agent] = (),
        policy: Policy | None = None,
        mode: Literal["write", "read"] = "write",
        keys: KeySource | None = None,
        accept_unsealed: bool = False,
        outer_codec: PayloadCodec | None = None,
        cache_dir: str | Path | None = None,
        inline_bytes_max: int = limits.INLINE_BYTES_MAX,
        encoder_bytes_max: int = limits.ENCODER_BYTES_MAX,
        decode_bytes_max: int = limits.DECODE_BYTES_MAX,
        sticky_seconds: float | None = None,
        nexus_offload: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        record_contents: bool = False,
        live: LiveServer | None = None,
        notify: Notify | None = None,
    ) -> None:
        if mode not in ("write", "read"):
            raise ConfigError(f"mode is {mode!r}; use 'write', or 'read' to write plain payloads")
        if live is not None and not isinstance(live, LiveServer):
            raise ConfigError(
                f"live is a {type(live).__name__}. Give LiveServer(url=..., token=...) of everlong.live."
            )
        if mode == "read" and agents:
            raise ConfigError("agents write to the store: mode='read' is for other workflows")
        if sticky_seconds is not None:
            worker_options.STICKY_SECONDS.check("sticky_seconds", sticky_seconds)
        self._sticky_seconds = sticky_seconds
        warn_of_untested_sdk(get_sdk_version())
        sdk_internals.probe()
        if outer_codec is not None:
            check_outer(outer_codec, has_keys=keys is not None)
        telemetry = Telemetry(tracer_provider, meter_provider, record_contents=record_contents)
        self.packs = open_packs(
            store,
            keys=keys,
            accept_unsealed=accept_unsealed,
            cache_dir=cache_dir,
            on_call=partial(record_store_call, telemetry.meters),
        )
        everyone = {id(each): each.name for agent in agents for each in agent.family}
        names = sorted(everyone.values())
        if len(set(names)) != len(names) or len({id(each) for each in agents}) != len(agents):
            raise ConfigError(f"two agents have the same name: {names}")
        self._has_agents = bool(agents)
        self._mode = mode
        self.codec = EverlongCodec(
            self.packs,
            inline_bytes_max=inline_bytes_max,
            encoder_bytes_max=encoder_bytes_max,
            decode_bytes_max=decode_bytes_max,
            read_only=mode == "read",
            nexus_offload=nexus_offload,
            spans=telemetry.spans,
        )
        self._outer_codec = outer_codec
        self._is_inspected = False
        self._codec_warning = ""
        self.codec.export_metrics(telemetry.meters)
        self._resumes = ResumeLog(telemetry)
        self._parts: ContextVar[_WorkerParts] = ContextVar("everlong_worker_parts")
        """Parts of the worker that the current task belongs to."""
        self._workers: list[Worker] = []
        self._has_foreign_runner = False
        self._activities = AgentActivities(
            self.packs,
            agents,
            policy or Policy(),
            telemetry,
            self._resumes.last,
            None if live is None else LiveSender(live),
            notify,
        )
        checks = CheckActivities(
            self.packs,
            names,
            inline_bytes_max=inline_bytes_max,
            has_attributes=lambda: self._activities.has_attributes,
            codec_warning=lambda: self._codec_warning,
        )
        self.sweeps = SweepActivities(
            self.packs,
            telemetry,
            None if cache_dir is None else Path(cache_dir),
            self._archive_due,
        )
        activities: list[Callable[..., Any]] = [
            *self._activities.list_activities(),
            checks.check,
            self.sweeps.sweep,
            *NotifyActivities(notify, telemetry).list_activities(),
        ]
        super().__init__(
            "everlong.EverlongPlugin",
            data_converter=self._configure_converter,
            interceptors=[
                NexusInterceptor(),
                SentTimeInterceptor(),
                ThreadIdInterceptor(),
                DrainInterceptor(),
                PolicyInterceptor(self._activities.find_policy),
            ],
            workflows=lambda existing: _append_missing(existing, _WORKFLOWS if agents else []),
            activities=lambda existing: _append_missing(existing, activities if agents else []),
            # A sandbox imports the modules of these types. It can import ours only if they pass through.
            workflow_failure_exception_types=lambda existing: _append_missing(
                existing, [LimitReached] if sdk_internals.is_on(sdk_internals.PASSTHROUGH) else []
            ),
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See `temporalio.worker.Plugin`."""
        # Checks the client's plugins, not its codec: another plugin may have wrapped the codec.
        plugins = config["client"].config()["plugins"]
        if not any(plugin is self for plugin in plugins):
            raise PluginNotOnClient(
                "this EverlongPlugin was given to the Worker but not to its Client, so payloads would "
                "not be encoded. Pass it to Client.connect(..., plugins=[plugin]); workers made from "
                "that client inherit it."
            )
        self.check_client(config["client"])
        config = super().configure_worker(config)
        deployment = config.get("deployment_config")
        if deployment is not None and deployment.use_worker_versioning:
            swapped = (VERSIONED.get(each, each) for each in config["workflows"])
            config["workflows"] = list(dict.fromkeys(swapped))  # The SDK may apply a plugin twice.
        config["workflow_runner"] = self._install_hooks(config["workflow_runner"])
        # Workflows of plugins that come after this one are not in the list yet.
        runs_only_agents = self._has_agents and _OWN_WORKFLOWS.issuperset(config["workflows"])
        worker_options.set_defaults(
            config, only_agents=runs_only_agents, sticky_seconds=self._sticky_seconds
        )
        config["unsandboxed_workflow_runner"] = self._install_hooks(
            config["unsandboxed_workflow_runner"]
        )
        return config

    def check_client(self, client: Client) -> None:
        """Reject a client whose codec hides or replaces Everlong's.

        Later plugins may change the data converter, so only the finished client shows its codec.
        """
        check_order(client.data_converter.payload_codec)

    async def run_worker(
        self,
        worker: Worker,
        next: Callable[[Worker], Awaitable[None]],  # noqa: A002
    ) -> None:
        """See `temporalio.worker.Plugin`."""
        sdk_internals.probe_worker(worker)
        self._workers.append(worker)
        # A task, so that a slow codec or key service does not delay the worker's start.
        inspection = asyncio.create_task(self._inspect_codec(worker.client))
        # Don't inherit the caller's read counter or trace context.
        counted, traced = READS.set(None), context.attach(Context())
        # The SDK creates workflow instances in tasks of this worker, which inherit the context variable.
        around = wrap_codec(self.codec, self._outer_codec)
        own = _WorkerParts(
            Prefetcher(
                worker.client, around, ThisWorker.from_config(worker.config(active_config=True))
            ),
            DrainReader(worker.client, around if isinstance(around, OuterCodec) else None),
        )
        token, unwatched = self._parts.set(own), UNWATCHED.set(self._is_unwatched)
        tasks = [inspection]
        try:
            if self._has_agents:
                tasks.append(await self._watch_attributes(worker))
            await super().run_worker(worker, next)
        finally:
            self._parts.reset(token)
            UNWATCHED.reset(unwatched)
            context.detach(traced)
            READS.reset(counted)
            self._workers.remove(worker)
            await _await_clean_up(self._clean_up(own, tasks))

    async def _watch_attributes(self, worker: Worker) -> asyncio.Task[None]:
        """Query the server for our search attributes, repeatedly until it has them."""
        found = self._activities.attribute_namespaces.add
        watch = AttributeWatch(lambda: worker.client, found)
        # Awaits the first answer, so that a thread's first step can set its attributes.
        return asyncio.create_task(watch.run(await watch.ask()))

    async def _clean_up(self, own: _WorkerParts, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Stop the tasks and parts of a worker that has ended."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await own.prefetcher.stop()
        if not self._workers:  # All workers share the models' connections.
            await self._activities.close()

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """See `temporalio.worker.Plugin`. A replayer writes no blobs and emits no spans."""
        config = super().configure_replayer(config)
        converter = config["data_converter"]
        if isinstance(converter.payload_codec, EverlongCodec | OuterCodec):
            config["data_converter"] = dataclasses.replace(
                converter, payload_codec=converter.payload_codec.as_read_only()
            )
        for runner in ("workflow_runner", "unsandboxed_workflow_runner"):
            config[runner] = install_hooks(pass_package_through(config[runner]), None)
        return config

    def _configure_converter(self, converter: DataConverter | None) -> DataConverter:
        return configure_converter(converter, self.codec, self._outer_codec)

    async def _inspect_codec(self, client: Client) -> None:
        """Warn once if a codec inside Everlong's makes every payload new."""
        ours = find_everlong_codec(client.data_converter.payload_codec)
        if self._is_inspected or ours is None or ours.inner is None:
            return
        self._is_inspected = True
        found = await inspect_codec(ours.inner, client.namespace)
        self._codec_warning = found.warning
        if found.warning:
            _LOG.warning("%s. %s", found.warning, INSPECTION_REMEDY)

    async def _archive_due(self, client: Client, packs: PackStore) -> ArchivedThreads:
        """Archive the threads that are due. Archives need packages that a worker may lack."""
        try:
            # Imported here, so that a worker that never sweeps does not pay for it.
            from everlong.client.archives import archive_before_sweep

            return await archive_before_sweep(client, packs, self._resumes.telemetry.spans)
        except ModuleNotFoundError as error:
            if error.name not in _ARCHIVE_PACKAGES:
                raise
            return ArchivedThreads(
                failed=(
                    "this worker cannot archive threads that a limit has ended with the action archive: "
                    f"it lacks {error.name!r}. Install it with: pip install 'everlong[admin]'",
                )
            )

    def _install_hooks(self, runner: WorkflowRunner) -> WorkflowRunner:
        def new_hooks(info: workflow.Info, history: RunHistory) -> list[ActivationHook]:
            own = self._parts.get()
            if self._mode == "read":
                own.drain_reader.watch(info, history)
            # Order matters: ResumeHook must wrap PrefetchHook's wait.
            return [
                ContinueAsNewHook(self._resumes.telemetry.spans, info),
                ResumeHook(self._resumes, info, history),
                PrefetchHook(own.prefetcher, info, history),
            ]

        rebuilt = install_hooks(pass_package_through(runner), new_hooks, self._evict)
        if not isinstance(rebuilt, sdk_internals.HookedRunner):
            self._has_foreign_runner = True
        return rebuilt

    def _is_unwatched(self) -> bool:
        """Return whether workflow tasks of this plugin's workers may have no activation hook."""
        return self._has_foreign_runner or not sdk_internals.is_on(sdk_internals.HOOKS)

    def _evict(self, run_id: str) -> None:
        """Evict a run from the cache of the worker that has it. Other workers ignore the request."""
        for worker in list(self._workers):
            # Core logs an error if a worker without workflows is asked.
            if worker.config(active_config=True)["workflows"]:
                sdk_internals.evict(worker, run_id)


async def _await_clean_up(clean_up: Coroutine[Any, Any, None]) -> None:
    """Await a worker's clean-up, also where the SDK does not wait for it.

    Before 1.35, `async with worker` cancels `run_worker` as soon as the worker has shut down. If
    `run_worker` then raised, the SDK would cancel the caller's task, in the code after the block.
    """
    if _SDK_AWAITS_CLEAN_UP:
        await clean_up
        return
    task = asyncio.create_task(clean_up)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if (current := asyncio.current_task()) is not None:
            current.uncancel()
        # A second cancellation propagates and ends the clean-up.
        try:
            async with asyncio.timeout(_CLEAN_UP_SECONDS_MAX):
                await task
        except TimeoutError:
            _LOG.warning("a worker's clean-up did not finish within %.0f s", _CLEAN_UP_SECONDS_MAX)


def _append_missing(existing: Sequence[T] | None, added: Sequence[T]) -> list[T]:
    """Append the items that are missing. The SDK may apply a plugin twice."""
    present = list(existing or ())
    return present + [item for item in added if item not in present]
