"""The activation hook: sees every workflow activation and its completion, outside the sandbox.

The SDK's interceptors run after decoding and have no call for an activation, so this subclasses the
workflow runners, an API that the SDK calls unstable. Nothing else in Everlong touches it.
"""

import copy
import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

logger = logging.getLogger(__name__)


class ActivationHook(Protocol):
    """Watches one workflow instance, from its creation until it leaves the worker's cache.

    Called in the SDK's workflow threads, one activation at a time.
    """

    def activated(
        self, activation: WorkflowActivation, completion: WorkflowActivationCompletion
    ) -> None:
        """Take note of an activation that has been carried out."""
        ...


NewHook: TypeAlias = Callable[[workflow.Info], ActivationHook]


@dataclasses.dataclass(frozen=True)
class HookedSandboxedRunner(SandboxedWorkflowRunner):
    """The sandboxed runner with a hook. A subclass, since other plugins test for the type."""

    new_hook: NewHook | None = None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        return _with_hook(super().create_instance(det), self.new_hook)


class HookedUnsandboxedRunner(UnsandboxedWorkflowRunner):
    """The unsandboxed runner with a hook."""

    def __init__(self, new_hook: NewHook) -> None:
        self._new_hook = new_hook

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        return _with_hook(super().create_instance(det), self._new_hook)


def hooked(runner: WorkflowRunner, new_hook: NewHook) -> WorkflowRunner:
    """Return the runner with a hook. One that has a hook, or that we do not know, stays as it is."""
    if isinstance(runner, HookedSandboxedRunner | HookedUnsandboxedRunner):
        return runner
    if type(runner) is SandboxedWorkflowRunner:
        return HookedSandboxedRunner(
            restrictions=runner.restrictions, runner_class=runner.runner_class, new_hook=new_hook
        )
    if type(runner) is UnsandboxedWorkflowRunner:
        return HookedUnsandboxedRunner(new_hook)
    logger.warning(
        "no resume spans: the workflow runner %s is not the SDK's", type(runner).__name__
    )
    return runner


def unhooked(runner: WorkflowRunner) -> WorkflowRunner:
    """Return the runner without a hook."""
    if isinstance(runner, HookedSandboxedRunner):
        return dataclasses.replace(runner, new_hook=None)
    if isinstance(runner, HookedUnsandboxedRunner):
        return UnsandboxedWorkflowRunner()
    return runner


def passing_through(runner: WorkflowRunner, module: str) -> WorkflowRunner:
    """Return the runner with a module passed through its sandbox, if it has one."""
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    # A copy keeps what another plugin's subclass has added; its constructor may be any.
    passing = copy.copy(runner)
    restrictions = runner.restrictions.with_passthrough_modules(module)
    object.__setattr__(passing, "restrictions", restrictions)
    return passing


def _with_hook(instance: WorkflowInstance, new_hook: NewHook | None) -> WorkflowInstance:
    info = instance.get_info()
    # The sandbox creates an instance with attempt -1 to validate a workflow; it never runs.
    if new_hook is None or info.attempt == -1:
        return instance
    return _HookedInstance(instance, new_hook(info))


class _HookedInstance(WorkflowInstance):
    """Delegates to an instance and reports what it did."""

    def __init__(self, instance: WorkflowInstance, hook: ActivationHook) -> None:
        self._instance = instance
        self._hook = hook

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        completion = self._instance.activate(act)
        try:
            self._hook.activated(act, completion)
        except Exception:
            # What watches a workflow must not fail it.
            logger.exception("the activation hook failed")
        return completion

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()
