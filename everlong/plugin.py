"""`EverlongPlugin`: the composition root. Give it to the client; its workers inherit it."""

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, TypeVar

from opentelemetry import trace
from opentelemetry.trace import TracerProvider
from temporalio import workflow
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everlong import limits
from everlong.activities import AgentActivities
from everlong.agents import Agent
from everlong.codecs import EverlongCodec
from everlong.errors import ConfigError, LimitReached, PluginNotOnClient
from everlong.interceptors.activation import hooked, passing_through, unhooked
from everlong.interceptors.resume import ResumeHook
from everlong.storage import BlobStore, open_store
from everlong.workflows import AgentWorkflow

T = TypeVar("T")

_STICKY: Final = "sticky_queue_schedule_to_start_timeout"
_SDK_STICKY_DEFAULT: Final = timedelta(seconds=10)


class EverlongPlugin(SimplePlugin):
    """Compresses and offloads payloads, traces resumes, and runs agents.

    Args:
        store: A URL (`file:///dir`, `memory:`) or a `BlobStore`.
        agents: Agents that workers made from this client run. None are needed for the codec alone.
        inline_bytes_max: Payloads above this, after compression, go to the store.
        tracer_provider: Where resume spans go; OpenTelemetry's global provider if not given.

    """

    def __init__(
        self,
        *,
        store: str | BlobStore,
        agents: Sequence[Agent] = (),
        inline_bytes_max: int = limits.INLINE_BYTES_MAX,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self.store = open_store(store) if isinstance(store, str) else store
        names = [agent.name for agent in agents]
        if len(set(names)) != len(names):
            raise ConfigError(f"two agents have the same name: {sorted(names)}")
        self._agents = tuple(agents)
        self._codec = EverlongCodec(self.store, inline_bytes_max=inline_bytes_max)
        self._tracer = trace.get_tracer("everlong", tracer_provider=tracer_provider)
        activities = AgentActivities(self.store, agents)
        super().__init__(
            "everlong.EverlongPlugin",
            data_converter=self._with_codec,
            workflow_runner=self._with_hook,
            workflows=lambda existing: _joined(existing, [AgentWorkflow] if agents else []),
            activities=lambda existing: _joined(
                existing,
                [activities.call_model, activities.run_tool, activities.append_journal]
                if agents
                else [],
            ),
            workflow_failure_exception_types=lambda existing: _joined(existing, [LimitReached]),
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See `temporalio.worker.Plugin`."""
        # Asked of the client's plugins, not its codec: another plugin may have wrapped that.
        plugins = config["client"].config()["plugins"]
        if not any(isinstance(plugin, EverlongPlugin) for plugin in plugins):
            raise PluginNotOnClient(
                "EverlongPlugin was given to the Worker but not to its Client, so payloads would not "
                "be encoded. Pass it to Client.connect(..., plugins=[plugin]); workers made from "
                "that client inherit it."
            )
        config = super().configure_worker(config)
        # Threads replay cheaply; a team's other workflows may not. A team's own setting wins, and
        # only its value tells it from the SDK's default.
        if self._agents and config[_STICKY] == _SDK_STICKY_DEFAULT:
            config[_STICKY] = timedelta(seconds=limits.STICKY_SECONDS)
        config["unsandboxed_workflow_runner"] = self._with_hook(
            config["unsandboxed_workflow_runner"]
        )
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """See `temporalio.worker.Plugin`. A replayer writes no blobs and emits no spans."""
        config = super().configure_replayer(config)
        converter = config["data_converter"]
        if isinstance(converter.payload_codec, EverlongCodec):
            config["data_converter"] = dataclasses.replace(
                converter, payload_codec=converter.payload_codec.reading()
            )
        config["workflow_runner"] = unhooked(config["workflow_runner"])
        return config

    def _with_codec(self, converter: DataConverter | None) -> DataConverter:
        """Wrap the codec that is there. The SDK may apply a plugin twice, so ours stays as it is."""
        converter = converter or DataConverter.default
        if isinstance(converter.payload_codec, EverlongCodec):
            if converter.payload_codec.store is not self.store:
                raise ConfigError(
                    "this client has another EverlongPlugin already; give it one, with all agents"
                )
            return converter
        return dataclasses.replace(
            converter, payload_codec=self._codec.around(converter.payload_codec)
        )

    def _with_hook(self, runner: WorkflowRunner | None) -> WorkflowRunner:
        # Our modules are deterministic where workflows import them, and costly to import again for
        # each of them.
        runner = passing_through(runner or SandboxedWorkflowRunner(), "everlong")
        return hooked(runner, self._new_hook)

    def _new_hook(self, info: workflow.Info) -> ResumeHook:
        return ResumeHook(self._tracer, info)


def _joined(existing: Sequence[T] | None, added: Sequence[T]) -> list[T]:
    """Append what is not there yet: the SDK may apply a plugin twice."""
    present = list(existing or ())
    return present + [item for item in added if item not in present]
