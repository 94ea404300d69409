"""Activation hooks: called around every workflow activation, outside the sandbox.

The SDK's interceptors run after decoding and have no call for an activation. Therefore the workflow
runners are rebuilt with instances that call hooks (`sdk_internals`). If the SDK's API has another shape,
the hooks are off, and workflows run as they do without Everlong.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from temporalio import workflow
from temporalio.api.enums.v1 import CommandType
from temporalio.worker import (
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from everlong.codecs.budget import BUDGET, CompletionBudget, TaskBudget
from everlong.interceptors import sdk_internals
from everlong.interceptors.headers import answers_operation
from everlong.interceptors.read_mode import (
    HOLDS_REFS,
    continues_as_new,
    get_plain_bytes_max,
    returns_to_drain,
)
from everlong.interceptors.replay import MATCH_COMMAND, ReplayInterceptor, drop_recorded
from everlong.interceptors.run_history import RunHistory
from everlong.interceptors.sdk_internals import (
    HOOKS,
    WorkflowActivation,
    WorkflowActivationCompletion,
)
from everlong.models import CONSUMED_FUNCTION
from everlong.storage.instrumented import READS

logger = logging.getLogger(__name__)

# Core's id for a query outside of a workflow task. Only such a query makes an instance run ahead.
LEGACY_QUERY_ID: Final = "legacy_query"
# Jobs that bring no events.
_ASIDE: Final = frozenset({"query_workflow", "remove_from_cache"})


class ActivationHook:
    """Observes one workflow instance, from its creation until it leaves the worker's cache.

    Created in the worker's event loop, then called in the SDK's workflow threads, one activation at a
    time.
    """

    def before_activation(self, activation: WorkflowActivation) -> None:
        """Observe an activation that is about to run."""

    def after_activation(
        self, activation: WorkflowActivation, completion: WorkflowActivationCompletion
    ) -> None:
        """Observe an activation that has run, and its completion."""


NewHooks: TypeAlias = Callable[[workflow.Info, RunHistory], Sequence[ActivationHook]]
Evict: TypeAlias = Callable[[str], None]
"""Evicts a run from the cache of the worker that holds it."""


def ignore_eviction(run_id: str) -> None:
    """Do nothing. For a `Replayer`, which answers no queries."""


def install_hooks(
    runner: WorkflowRunner, new_hooks: NewHooks | None, evict: Evict = ignore_eviction
) -> WorkflowRunner:
    """Return the runner with hooks. A `Replayer` passes None: it only drops recorded values.

    A runner that has hooks already, or that is not the SDK's, is returned unchanged.
    """

    def new_instance(
        details: WorkflowInstanceDetails,
        create: Callable[[WorkflowInstanceDetails], WorkflowInstance],
    ) -> WorkflowInstance:
        history = RunHistory()
        with sdk_internals.guard(HOOKS):
            details = _add_interceptor(details, history)
        instance = create(details)  # Not guarded: a user's workflow code may raise here.
        if sdk_internals.is_on(HOOKS):
            with sdk_internals.guard(HOOKS):
                return _wrap_instance(instance, history, new_hooks, evict)
        return instance

    return sdk_internals.rebuild_runner(runner, new_instance)


def pass_package_through(runner: WorkflowRunner) -> WorkflowRunner:
    """Return the runner with `everlong` passed through its sandbox, if it has one.

    The modules that workflows import are deterministic, and importing them for each workflow is slow.
    """
    return sdk_internals.pass_through(runner, "everlong")


def _add_interceptor(
    details: WorkflowInstanceDetails, history: RunHistory
) -> WorkflowInstanceDetails:
    # Order matters: the first interceptor's outbound half is the innermost, so all others see the
    # arguments before they are dropped.
    classes: list[type[WorkflowInboundInterceptor]] = [
        ReplayInterceptor,
        *details.interceptor_classes,
    ]
    return dataclasses.replace(
        details,
        interceptor_classes=classes,
        extern_functions={
            **details.extern_functions,
            MATCH_COMMAND: history.match_command,
            HOLDS_REFS: history.holds_refs,
            CONSUMED_FUNCTION: history.consumption.get_bytes,
        },
    )


def _wrap_instance(
    instance: WorkflowInstance, history: RunHistory, new_hooks: NewHooks | None, evict: Evict
) -> WorkflowInstance:
    info = instance.get_info()
    # The sandbox creates an instance with attempt -1 to validate a workflow; it never runs.
    if info.attempt == -1:
        return instance
    # This task has just decoded the first activation, so its read counter holds those reads.
    history.reads = READS.get() or history.reads
    hooks = new_hooks(info, history) if new_hooks else ()
    return _HookedInstance(instance, history, hooks, evict)


class RunAheadDetector:
    """Detects a workflow instance that a query has run ahead of its history.

    On SDK 1.33 to 1.35, a query that a cold worker answers while a workflow task is scheduled but not
    yet started makes Core deliver the events of that task to the workflow. A later job, such as an
    update, is then applied after those events, but every replay applies it before them. So the history
    could not be replayed (the SDK's issue 1591 is one case). Such an instance answers its query and must
    be evicted: another instance then runs the task from the beginning.

    Core sends an instance that runs ahead these activations: a replay up to the last task, the events of
    the task that has not been started, and then the query.
    """

    def __init__(self) -> None:
        self._last: tuple[int, int, int] | None = None
        self._is_ahead = False

    def observe(self, activation: WorkflowActivation) -> bool:
        """Return whether this activation brings events of a task that has not been started.

        The event that starts a task gives the activation its time and history size. Without that
        event, Core repeats the time and size of the previous task. The time alone is not enough: after
        the server's clock has stepped back, Core repeats the last time for each task until the clock
        has caught up. The size grows with each task. A server that does not send the size (0) is too
        old for updates, and only updates break an instance that runs ahead.
        """
        if {job.WhichOneof("variant") for job in activation.jobs} <= _ASIDE:
            return False
        length, size_bytes = activation.history_length, activation.history_size_bytes
        last = self._last
        self._last = (length, size_bytes, activation.timestamp.ToNanoseconds())
        if last is None or activation.is_replaying or not size_bytes or self._last[1:] != last[1:]:
            self._is_ahead = False
        else:
            # Further activations of the same events keep the instance ahead.
            self._is_ahead = self._is_ahead or length > last[0]
        return self._is_ahead

    def must_evict(self, activation: WorkflowActivation) -> bool:
        """Return whether this activation is the query that made the instance run ahead."""
        return self._is_ahead and any(
            job.query_workflow.query_id == LEGACY_QUERY_ID for job in activation.jobs
        )


@sdk_internals.delegate_rest
class _HookedInstance(WorkflowInstance):
    """Delegates to an instance, and calls the hooks around each activation."""

    def __init__(
        self,
        instance: WorkflowInstance,
        history: RunHistory,
        hooks: Sequence[ActivationHook],
        evict: Evict,
    ) -> None:
        self._instance = instance
        self._history = history
        self._hooks = hooks
        self._evict = evict
        self._run_ahead = RunAheadDetector()
        self._task_budget = TaskBudget()
        self._budget = CompletionBudget()
        self._fails = False
        self._rolls = False
        info = instance.get_info()
        self._answers_operation = answers_operation(info)
        self._returns_to_drain = returns_to_drain(info)
        self._has_parent = info.parent is not None

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self._notify(lambda hook: hook.before_activation(act))
        ahead = settled = False
        with sdk_internals.guard(HOOKS):
            # Guarded alone: a count that skips an activation would differ from the count of a replay.
            self._history.consumption.count_jobs(act)
        with sdk_internals.guard(HOOKS):
            if self._history.drain is not None:
                self._history.drain.begin(replaying=act.is_replaying)
            ahead = self._run_ahead.observe(act)
            if self._run_ahead.must_evict(act):
                self._evict(act.run_id)
            # Asked before this activation adds its own commands.
            settled = act.is_replaying and self._history.holds_all()
            if not act.is_replaying:
                self._history.release()
        completion = self._instance.activate(act)
        self._budget = CompletionBudget(drain=self._history.drain)
        with sdk_internals.guard(HOOKS):
            self._history.consumption.count_accepted_updates(completion)
        with sdk_internals.guard(HOOKS):
            self._complete(act, completion, ahead=ahead, settled=settled)
        self._notify(lambda hook: hook.after_activation(act, completion))
        return completion

    def _complete(
        self,
        act: WorkflowActivation,
        completion: WorkflowActivationCompletion,
        *,
        ahead: bool,
        settled: bool,
    ) -> None:
        """Drop recorded values from a completion, and set the budget for encoding the rest."""
        if act.is_replaying:
            drop_recorded(completion, self._history)
        self._budget = self._open_budget(act, ahead=ahead, settled=settled)
        self._budget.drain = self._history.drain
        self._fails = _fails_workflow(completion)
        self._rolls = continues_as_new(completion)

    def _open_budget(
        self, act: WorkflowActivation, *, ahead: bool, settled: bool
    ) -> CompletionBudget:
        if all(job.HasField("query_workflow") for job in act.jobs):
            alone = any(job.query_workflow.query_id == LEGACY_QUERY_ID for job in act.jobs)
            return self._task_budget.open_for_answers(
                act.history_length, alone=alone, run_id=act.run_id
            )
        # Core discards the commands of an instance that has run ahead, so they are not stored.
        repeats = act.is_replaying and not self._history.went_beyond
        return self._task_budget.open(
            act.history_length,
            live=not (ahead or act.is_replaying),
            replaying=ahead or repeats,
            settled=settled,
            run_id=act.run_id,
        )

    def _notify(self, call: Callable[[ActivationHook], None]) -> None:
        for hook in self._hooks:
            try:
                call(hook)
            except Exception:
                # A hook must not fail the workflow.
                logger.exception("an activation hook failed")

    def get_serialization_context(self, command_info: Any, *others: Any, **named: Any) -> Any:
        # The SDK calls this before each payload, in the task that decodes the activation or encodes the
        # completion. So the context variables reach the codec.
        READS.set(self._history.reads)
        ends = _ends_workflow(command_info, self._fails)
        self._budget.leaves_namespace = self._answers_operation and ends
        self._budget.returns_to_drain = self._returns_to_drain and ends
        self._budget.plain_bytes_max = get_plain_bytes_max(
            command_info, ends=ends, rolls=self._rolls, has_parent=self._has_parent
        )
        BUDGET.set(self._budget)
        return self._instance.get_serialization_context(command_info, *others, **named)

    def get_external_store_context(self, *args: Any, **named: Any) -> Any:
        return self._instance.get_external_store_context(*args, **named)

    def get_info(self) -> workflow.Info:
        return self._instance.get_info()


def _fails_workflow(completion: WorkflowActivationCompletion) -> bool:
    """Return whether a completion fails the workflow."""
    commands = completion.successful.commands
    return any(command.HasField("fail_workflow_execution") for command in commands)


def _ends_workflow(command_info: Any, fails: bool) -> bool:
    """Return whether a payload belongs to the workflow's result, or may belong to its failure."""
    if command_info is None:
        return fails
    command_type = getattr(command_info, "command_type", None)
    return bool(command_type == CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION)
