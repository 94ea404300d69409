"""Private and unstable APIs of the Temporal SDK. No other module uses them.

Nothing else in Everlong imports `temporalio.bridge`, or reads a name of the SDK that begins with an
underscore. Each API carries one feature. `probe` tries the APIs when a plugin is created, and each use
is guarded too. If an API is missing or has another shape, its feature is off in this process, and one
warning names the feature, the API and the loss. It never fails a workflow.
"""

import abc
import asyncio
import contextlib
import copy
import dataclasses
import importlib
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from temporalio import nexus, workflow
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

if TYPE_CHECKING:
    from temporalio.bridge.proto import workflow_activation, workflow_commands, workflow_completion

    InitializeWorkflow: TypeAlias = workflow_activation.InitializeWorkflow
    WorkflowActivation: TypeAlias = workflow_activation.WorkflowActivation
    WorkflowActivationCompletion: TypeAlias = workflow_completion.WorkflowActivationCompletion
    WorkflowCommand: TypeAlias = workflow_commands.WorkflowCommand
else:
    # Only annotations need these names at run time. `_probe_messages` checks the messages.
    InitializeWorkflow = WorkflowActivation = WorkflowActivationCompletion = WorkflowCommand = Any

logger = logging.getLogger(__name__)

InstanceT = TypeVar("InstanceT", bound=type[WorkflowInstance])
NewInstance: TypeAlias = Callable[
    [WorkflowInstanceDetails, Callable[[WorkflowInstanceDetails], WorkflowInstance]],
    WorkflowInstance,
]
"""Creates a workflow instance from its details and the runner's own factory."""


@dataclasses.dataclass(frozen=True)
class Feature:
    """A part of Everlong that depends on a private API of the SDK."""

    name: str
    api: str
    loss: str
    """Consequence of losing the feature, for the warning."""


HOOKS: Final = Feature(
    "activation hooks",
    "the workflow runners of temporalio.worker and the messages of temporalio.bridge.proto",
    "replays convert and store payloads again, large histories resume slowly, there are no resume "
    "spans, the size of a workflow task's completion is not bounded, with mode='read' every run "
    "offloads what is over 64 KiB, and should_continue_as_new does not see what is offloaded",
)
PASSTHROUGH: Final = Feature(
    "sandbox passthrough",
    "temporalio.worker.workflow_sandbox.SandboxedWorkflowRunner.restrictions",
    "a sandbox runs only workflows that do not import Everlong; for the others, and for agents, give "
    "the worker an UnsandboxedWorkflowRunner",
)
ACTIVITY_IDS: Final = Feature(
    "activity ids on replay",
    "temporalio.workflow._Runtime and its _curr_seqs",
    "a replay converts the arguments of activities again; it still writes nothing",
)
EVICTION: Final = Feature(
    "eviction on request",
    "temporalio.worker.Worker._bridge_worker.request_workflow_eviction",
    "a workflow that a query has run ahead of its history stays in the worker's cache, and its history "
    "may not replay",
)
NEXUS_STARTS: Final = Feature(
    "marks on workflows that answer Nexus operations",
    "temporalio.nexus._operation_context._in_nexus_backing_start_context",
    "every workflow that a Nexus operation handler starts keeps its result inline, also those that do "
    "not answer the operation",
)

_off: set[Feature] = set()
_lock: Final = threading.Lock()
_PROBE: Final = "everlong.Probe"
_PROBE_ACTIVITIES: Final = 2
_PROBE_SECONDS_MAX: Final = 10  # The probe takes 2 ms; a busy machine may need longer.
_REPORT: Final = "__everlong_report"  # An extern function of the probe's workflow.
# Fields that the hooks read, by module and message.
_FIELDS: Final = {
    "workflow_activation.WorkflowActivation": (
        "run_id timestamp is_replaying history_length history_size_bytes jobs"
    ),
    "workflow_activation.WorkflowActivationJob": (
        "initialize_workflow query_workflow do_update remove_from_cache"
    ),
    "workflow_activation.InitializeWorkflow": (
        "workflow_type arguments start_time continued_from_execution_run_id continued_initiator"
    ),
    "workflow_activation.QueryWorkflow": "query_id",
    "workflow_activation.DoUpdate": "protocol_instance_id",
    "workflow_commands.WorkflowCommand": (
        "schedule_activity start_child_workflow_execution continue_as_new_workflow_execution "
        "update_response complete_workflow_execution fail_workflow_execution"
    ),
    "workflow_commands.ScheduleActivity": "activity_id arguments",
    "workflow_commands.UpdateResponse": "protocol_instance_id accepted completed",
    "workflow_completion.WorkflowActivationCompletion": "run_id successful failed",
}


def is_on(feature: Feature) -> bool:
    """Return whether a feature can be used in this process."""
    return feature not in _off


def _switch_off(feature: Feature, error: Exception) -> None:
    """Switch a feature off in this process. The first call logs the warning."""
    with _lock:
        if feature in _off:
            return
        _off.add(feature)
    logger.warning(
        "%s: switched off, since this version of the Temporal SDK lacks %s, or has it in another form "
        "(%r). Consequence: %s. No workflow fails because of it",
        *(feature.name, feature.api, error, feature.loss),
        exc_info=error,
    )


@contextlib.contextmanager
def guard(feature: Feature) -> Iterator[None]:
    """Switch a feature off if the body raises. The error is not propagated."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - any error means that the API has changed
        _switch_off(feature, error)


def probe() -> None:
    """Try each API, and switch off the features whose API is not as expected."""
    with guard(HOOKS):
        _probe_messages()
        _probe_runners()
    with guard(PASSTHROUGH):
        _probe_passthrough()
    if is_on(HOOKS):  # Only the hooks use the next two.
        with guard(ACTIVITY_IDS):
            _probe_activity_ids()
        with guard(EVICTION):
            bridge = importlib.import_module("temporalio.bridge.worker")
            _require(bridge.Worker, "request_workflow_eviction")
    with guard(NEXUS_STARTS):
        _starts_for_operation()


def probe_worker(worker: Worker) -> None:
    """Try the APIs that exist only on a worker instance."""
    if is_on(HOOKS) and is_on(EVICTION):
        with guard(EVICTION):
            _require(worker, "_bridge_worker")


def next_activity_id() -> str:
    """Return the id that the SDK will give to a workflow's next activity; empty if unknown."""
    if is_on(ACTIVITY_IDS):
        with guard(ACTIVITY_IDS):
            return _next_activity_id()
    return ""


def evict(worker: Worker, run_id: str) -> None:
    """Ask a worker to evict a run from its cache. A worker without the run ignores the request."""
    if not is_on(EVICTION):
        return
    request: Callable[[str], None] | None = None
    with guard(EVICTION):
        bridge: Any = worker._bridge_worker
        request = bridge.request_workflow_eviction if bridge is not None else None
    if request is not None:
        try:
            request(run_id)
        except Exception as error:  # noqa: BLE001 - a worker that has just ended has no cache
            logger.debug("a run was not evicted: %s", type(error).__name__)


def starts_for_operation() -> bool:
    """Return whether the workflow that is being started answers a Nexus operation.

    If the SDK has no such API, each workflow that an operation's handler starts counts: its result then
    stays inline, where the caller can read it.
    """
    if is_on(NEXUS_STARTS):
        with guard(NEXUS_STARTS):
            return _starts_for_operation()
    return nexus.in_operation()


class HookedRunner:
    """Marks the runners that `rebuild_runner` has created."""


def rebuild_runner(runner: WorkflowRunner, new_instance: NewInstance) -> WorkflowRunner:
    """Return the SDK's runner with its instances created by `new_instance`.

    The result is a subclass and a dataclass as the SDK's own: other plugins test for the type, and use
    `dataclasses.replace`. A runner that is not the SDK's, or that cannot be rebuilt, is returned
    unchanged.
    """
    if isinstance(runner, HookedRunner) or not is_on(HOOKS):
        return runner
    with guard(HOOKS):
        if type(runner) is SandboxedWorkflowRunner:
            return _rebuild_sandboxed(runner, new_instance)
        if type(runner) is UnsandboxedWorkflowRunner:
            return _rebuild_unsandboxed(new_instance)
    if is_on(HOOKS):
        logger.warning(
            "replays write payloads again, there are no resume spans, with mode='read' every run "
            "offloads what is over 64 KiB, and should_continue_as_new does not see what is offloaded: "
            "the workflow runner %s is not the SDK's",
            type(runner).__name__,
        )
    return runner


def pass_through(runner: WorkflowRunner, module: str) -> WorkflowRunner:
    """Return the runner with a module passed through its sandbox, if it has one."""
    # Checks the attribute, not the runner's type: nothing else of the runner is used.
    if getattr(runner, "restrictions", None) is not None and is_on(PASSTHROUGH):
        with guard(PASSTHROUGH):
            return _pass_through(runner, module)
    return runner


def delegate_rest(wrapper: InstanceT) -> InstanceT:
    """Make a wrapper of workflow instances delegate the methods that it does not define.

    A method that a newer SDK adds to its instances then reaches the wrapped instance, `_instance`.
    """

    def delegate(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(self._instance, name)(*args, **kwargs)

    for name, value in vars(WorkflowInstance).items():
        if callable(value) and not name.startswith("_") and name not in vars(wrapper):
            setattr(wrapper, name, delegate(name))
    abc.update_abstractmethods(wrapper)
    return wrapper


def _next_activity_id() -> str:
    runtime: Any = workflow._Runtime.current()
    return str(runtime._curr_seqs.get("activity", 0) + 1)


def _starts_for_operation() -> bool:
    context = importlib.import_module("temporalio.nexus._operation_context")
    return bool(context._in_nexus_backing_start_context())


def _pass_through(runner: Any, module: str) -> WorkflowRunner:
    # A copy keeps the attributes of another plugin's subclass, whose constructor is unknown.
    passing: WorkflowRunner = copy.copy(runner)
    restrictions = runner.restrictions.with_passthrough_modules(module)
    object.__setattr__(passing, "restrictions", restrictions)
    return passing


def _rebuild_sandboxed(
    runner: SandboxedWorkflowRunner, new_instance: NewInstance
) -> SandboxedWorkflowRunner:
    # Defined here, so that a base class of another shape raises within the guard, not on import.
    @dataclasses.dataclass(frozen=True)
    class HookedSandboxedRunner(SandboxedWorkflowRunner, HookedRunner):
        new_instance: NewInstance | None = None

        def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
            create = super().create_instance
            return self.new_instance(det, create) if self.new_instance else create(det)

    names = [each.name for each in dataclasses.fields(runner) if each.init]
    fields = {name: getattr(runner, name) for name in names}
    return HookedSandboxedRunner(**fields, new_instance=new_instance)


def _rebuild_unsandboxed(new_instance: NewInstance) -> UnsandboxedWorkflowRunner:
    class HookedUnsandboxedRunner(UnsandboxedWorkflowRunner, HookedRunner):
        def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
            return new_instance(det, super().create_instance)

    return HookedUnsandboxedRunner()


def _require(owner: Any, *names: str) -> None:
    for name in names:
        if not hasattr(owner, name):
            raise AttributeError(
                f"{getattr(owner, '__name__', type(owner).__name__)} has no {name}"
            )


def _probe_messages() -> None:
    for place, fields in _FIELDS.items():
        module, message = place.split(".")
        found = importlib.import_module(f"temporalio.bridge.proto.{module}")
        known = getattr(found, message).DESCRIPTOR.fields_by_name
        if missing := [field for field in fields.split() if field not in known]:
            raise AttributeError(f"{message} has no {missing[0]}")


def _probe_runners() -> None:
    _require(WorkflowInstance, "activate", "get_info", "get_serialization_context")
    details = {each.name for each in dataclasses.fields(WorkflowInstanceDetails)}
    if missing := {"interceptor_classes", "extern_functions"} - details:
        raise AttributeError(f"WorkflowInstanceDetails has no {min(missing)}")

    def create_unchanged(
        details: WorkflowInstanceDetails,
        create: Callable[[WorkflowInstanceDetails], WorkflowInstance],
    ) -> WorkflowInstance:
        return create(details)

    rebuilt = dataclasses.replace(_rebuild_sandboxed(SandboxedWorkflowRunner(), create_unchanged))
    if getattr(rebuilt, "new_instance", None) is not create_unchanged:
        raise TypeError("a copy of the sandboxed runner has lost its hooks")
    _rebuild_unsandboxed(create_unchanged)


def _probe_passthrough() -> None:
    passing: Any = _pass_through(SandboxedWorkflowRunner(), _PROBE)
    if _PROBE not in passing.restrictions.passthrough_modules:
        raise TypeError("restrictions that are set on a runner have no effect")


@workflow.defn(name=_PROBE)
class _ProbeWorkflow:
    """Schedules activities, and reports the ids expected for them."""

    @workflow.run
    async def run(self) -> None:
        report = workflow.extern_functions()[_REPORT]
        for _ in range(_PROBE_ACTIVITIES):
            report(_next_activity_id())
            workflow.start_activity("everlong.probe", start_to_close_timeout=timedelta(seconds=1))


def _probe_activity_ids() -> None:
    """Run a workflow without a server, and compare the ids of its commands with those expected."""
    # A wrong id could match the event of another activity, whose arguments would be dropped.
    expected: list[str] = []
    found: list[str] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            found.extend(_run_probe_workflow(expected.append))
        except Exception as error:  # noqa: BLE001 - raised below, in the calling thread
            failures.append(error)

    # In its own thread: a workflow instance takes over the event loop of the thread that it runs in.
    thread = threading.Thread(target=run, name="everlong-probe", daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS_MAX)
    if failures:
        raise failures[0]
    if len(expected) != _PROBE_ACTIVITIES or found != expected:
        raise TypeError(f"expected activity ids {expected}, the SDK gave {found}")


def _run_probe_workflow(report: Callable[[str], None]) -> list[str]:
    """Return the activity ids of the commands that `_ProbeWorkflow` issues."""
    messages: Any = importlib.import_module("temporalio.bridge.proto.workflow_activation")
    instances: list[WorkflowInstance] = []

    class Capturing(SandboxedWorkflowRunner):
        def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
            # The SDK's validation of a workflow passes complete details.
            det = dataclasses.replace(det, extern_functions={_REPORT: report})
            instances.append(UnsandboxedWorkflowRunner().create_instance(det))
            return instances[0]

    async def create() -> None:  # An instance must be created inside of an event loop.
        Capturing().prepare_workflow(workflow._Definition.must_from_class(_ProbeWorkflow))

    def activate(**job: Any) -> Any:
        jobs = [messages.WorkflowActivationJob(**job)]
        return instances[0].activate(messages.WorkflowActivation(run_id=_REPORT, jobs=jobs))

    asyncio.run(create())
    start = messages.InitializeWorkflow(workflow_type=_PROBE, workflow_id=_PROBE)
    commands = activate(initialize_workflow=start).successful.commands
    activate(remove_from_cache=messages.RemoveFromCache())  # Ends its tasks.
    scheduled = [each.schedule_activity for each in commands if each.HasField("schedule_activity")]
    return [str(each.activity_id) for each in scheduled]
