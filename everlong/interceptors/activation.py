"""The activation hook: sees every workflow activation and its completion, outside the sandbox.

The SDK's interceptors run after decoding and have no call for an activation, so this subclasses the
workflow runners, an API that the SDK calls unstable. Nothing else in Everlong touches it.
"""

import copy
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from everlong.codecs.budget import BUDGET, CompletionBudget, TaskBudget
from everlong.interceptors.ahead import LEGACY_QUERY_ID, RunAhead
from everlong.interceptors.drain import (
    HOLDS_REFS,
    continues_as_new,
    plain_bytes_max,
    returns_to_drain,
)
from everlong.interceptors.nexus import answers_operation, ends_workflow, fails_workflow
from everlong.interceptors.recorded import Recorded
from everlong.interceptors.replay import TAKE, ReplayInterceptor, drop_recorded
from everlong.models import CONSUMED_FUNCTION
from everlong.storage.counting import READS

logger = logging.getLogger(__name__)


class ActivationHook:
    """Watches one workflow instance, from its creation until it leaves the worker's cache.

    Made in the worker's event loop, then called in the SDK's workflow threads, one activation at a
    time.
    """

    def activating(self, activation: WorkflowActivation) -> None:
        """Take note of an activation that is about to be carried out."""

    def activated(
        self, activation: WorkflowActivation, completion: WorkflowActivationCompletion
    ) -> None:
        """Take note of an activation that has been carried out."""


NewHooks: TypeAlias = Callable[[workflow.Info, Recorded], Sequence[ActivationHook]]
Evict: TypeAlias = Callable[[str], None]
"""Have a run leave the cache of the worker that has it."""


def evict_nothing(run_id: str) -> None:
    """Do nothing: a `Replayer` answers no queries."""


@dataclasses.dataclass(frozen=True)
class HookedSandboxedRunner(SandboxedWorkflowRunner):
    """The sandboxed runner with a hook. A subclass, since other plugins test for the type."""

    new_hooks: NewHooks | None = None
    evict: Evict = evict_nothing

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        recorded = Recorded()
        instance = super().create_instance(_intercepted(det, recorded))
        return _with_hooks(instance, recorded, self.new_hooks, self.evict)


class HookedUnsandboxedRunner(UnsandboxedWorkflowRunner):
    """The unsandboxed runner with a hook."""

    def __init__(self, new_hooks: NewHooks | None, evict: Evict = evict_nothing) -> None:
        self._new_hooks = new_hooks
        self._evict = evict

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        recorded = Recorded()
        instance = super().create_instance(_intercepted(det, recorded))
        return _with_hooks(instance, recorded, self._new_hooks, self._evict)


def hooked(
    runner: WorkflowRunner, new_hooks: NewHooks | None, evict: Evict = evict_nothing
) -> WorkflowRunner:
    """Return the runner with hooks, or with none for a `Replayer`.

    One that has hooks, or that we do not know, stays as it is.
    """
    if isinstance(runner, HookedSandboxedRunner | HookedUnsandboxedRunner):
        return runner
    if type(runner) is SandboxedWorkflowRunner:
        return HookedSandboxedRunner(
            restrictions=runner.restrictions,
            runner_class=runner.runner_class,
            new_hooks=new_hooks,
            evict=evict,
        )
    if type(runner) is UnsandboxedWorkflowRunner:
        return HookedUnsandboxedRunner(new_hooks, evict)
    logger.warning(
        "replays write payloads again, there are no resume spans, and mode='read' does not drain: the "
        "workflow runner %s is not the SDK's",
        type(runner).__name__,
    )
    return runner


def passing_through(runner: WorkflowRunner) -> WorkflowRunner:
    """Return the runner with our package passed through its sandbox, if it has one.

    Our modules are deterministic where workflows import them, and costly to import again for each.
    """
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    # A copy keeps what another plugin's subclass has added; its constructor may be any.
    passing = copy.copy(runner)
    restrictions = runner.restrictions.with_passthrough_modules("everlong")
    object.__setattr__(passing, "restrictions", restrictions)
    return passing


def _intercepted(details: WorkflowInstanceDetails, recorded: Recorded) -> WorkflowInstanceDetails:
    # The outbound half of the first is the innermost: others have seen the arguments by then.
    classes: list[type[WorkflowInboundInterceptor]] = [
        ReplayInterceptor,
        *details.interceptor_classes,
    ]
    return dataclasses.replace(
        details,
        interceptor_classes=classes,
        extern_functions={
            **details.extern_functions,
            TAKE: recorded.take,
            HOLDS_REFS: recorded.holds_refs,
            CONSUMED_FUNCTION: recorded.consumption.consumed_bytes,
        },
    )


def _with_hooks(
    instance: WorkflowInstance, recorded: Recorded, new_hooks: NewHooks | None, evict: Evict
) -> WorkflowInstance:
    info = instance.get_info()
    # The sandbox creates an instance with attempt -1 to validate a workflow; it never runs.
    if info.attempt == -1:
        return instance
    # This is the task that has just decoded the first activation.
    recorded.reads = READS.get() or recorded.reads
    hooks = new_hooks(info, recorded) if new_hooks else ()
    return _HookedInstance(instance, recorded, hooks, evict)


class _HookedInstance(WorkflowInstance):
    """Delegates to an instance and reports what it did."""

    def __init__(
        self,
        instance: WorkflowInstance,
        recorded: Recorded,
        hooks: Sequence[ActivationHook],
        evict: Evict,
    ) -> None:
        self._instance = instance
        self._recorded = recorded
        self._hooks = hooks
        self._evict = evict
        self._run_ahead = RunAhead()
        self._task_budget = TaskBudget()
        self._budget = CompletionBudget()
        self._fails = False
        self._rolls = False
        info = instance.get_info()
        self._answers_operation = answers_operation(info)
        self._returns_to_drain = returns_to_drain(info)
        self._has_parent = info.parent is not None

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self._tell(lambda hook: hook.activating(act))
        if self._recorded.drain is not None:
            self._recorded.drain.begin(replaying=act.is_replaying)
        ahead = self._run_ahead.noticed(act)
        if self._run_ahead.must_leave(act):
            self._evict(act.run_id)
        # Asked before this activation adds commands of its own.
        settled = act.is_replaying and self._recorded.holds_all()
        self._recorded.consumption.activating(act)
        completion = self._instance.activate(act)
        self._recorded.consumption.activated(completion)
        if act.is_replaying:
            drop_recorded(completion, self._recorded)
        self._budget = self._open_budget(act, ahead=ahead, settled=settled)
        self._budget.drain = self._recorded.drain
        self._fails = fails_workflow(completion)
        self._rolls = continues_as_new(completion)
        self._tell(lambda hook: hook.activated(act, completion))
        return completion

    def _open_budget(
        self, act: WorkflowActivation, *, ahead: bool, settled: bool
    ) -> CompletionBudget:
        if all(job.HasField("query_workflow") for job in act.jobs):
            alone = any(job.query_workflow.query_id == LEGACY_QUERY_ID for job in act.jobs)
            return self._task_budget.open_for_answers(
                act.history_length, alone=alone, run_id=act.run_id
            )
        # The commands of a run that is ahead are not carried out, so they are not stored either.
        repeats = act.is_replaying and not self._recorded.went_beyond
        return self._task_budget.open(
            act.history_length,
            live=not (ahead or act.is_replaying),
            replaying=ahead or repeats,
            settled=settled,
            run_id=act.run_id,
        )

    def _tell(self, call: Callable[[ActivationHook], None]) -> None:
        for hook in self._hooks:
            try:
                call(hook)
            except Exception:
                # What watches a workflow must not fail it.
                logger.exception("the activation hook failed")

    def get_serialization_context(self, command_info: Any) -> Any:
        # The SDK asks for this in the task that decodes an activation or encodes the completion,
        # before each payload.
        READS.set(self._recorded.reads)
        ends = ends_workflow(command_info, self._fails)
        self._budget.leaving = self._answers_operation and ends
        self._budget.returns_to_drain = self._returns_to_drain and ends
        self._budget.plain_bytes_max = plain_bytes_max(
            command_info, ends=ends, rolls=self._rolls, has_parent=self._has_parent
        )
        BUDGET.set(self._budget)
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> workflow.Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()
