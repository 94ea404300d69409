"""Tool calls of a reply: runs them in parallel, each as soon as it may run, sub-agents included.

A sub-agent is a thread of its own. The parent does not wait for the child workflow: the child outlives
the parent's run, and signals its result to the parent's workflow id.
"""

import asyncio
import contextlib
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Final

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    TimeoutType,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.workflow import ParentClosePolicy

from everlong import limits
from everlong.models import (
    AGENT_WORKFLOW,
    BRIEF,
    COLLECT,
    CONTEXT_TOOLS,
    RUN_TOOL,
    Brief,
    BriefResult,
    Call,
    Collect,
    Context,
    Counters,
    Parent,
    Report,
    ThreadStart,
    ThreadState,
    ToolResult,
    ToolRun,
    build_error_result,
    compute_idempotency_key,
    names,
)
from everlong.models.grants import is_thread_grant
from everlong.models.search_attributes import build_start_attributes
from everlong.models.state import replace_values
from everlong.models.tools import UnknownCause, get_outcome_id
from everlong.workflows import approvals, deadlines, outcomes, transitions, visibility
from everlong.workflows.activity_executor import (
    ActivityExecutor,
    StepAbandoned,
    build_retry_policy,
    describe_failure,
    get_failure_type,
)

if TYPE_CHECKING:
    from everlong.workflows.thread import Thread

_OURS: Final = build_retry_policy()


class ToolRunner:
    """Runs the tool calls of a thread's newest reply."""

    def __init__(self, thread: "Thread", executor: ActivityExecutor) -> None:
        self._thread = thread
        self._executor = executor

    def is_runnable(self, call: Call) -> bool:
        """Whether a call can run now: it waits for neither a person nor a sub-agent."""
        if call.result is not None or call.waits is not None or call.unknown is not None:
            return False
        return not call.child_id or call.report is not None

    async def run(self) -> None:
        """Run calls until none can run. A call that is approved meanwhile starts at once."""
        running: dict[str, asyncio.Task[None]] = {}
        errors: dict[str, BaseException] = {}
        try:
            while True:
                for call in self._find_startable({*running, *errors}):
                    task = asyncio.create_task(self._run(call.id))
                    # Retrieve the exception, or asyncio logs it if the thread is cancelled.
                    task.add_done_callback(lambda done: done.cancelled() or done.exception())
                    running[call.id] = task
                if not running:
                    break
                await self._wait_for_change(running, errors)
                for call_id in [each for each, task in running.items() if task.done()]:
                    if error := running.pop(call_id).exception():
                        errors[call_id] = error
                if running:  # After the step the thread publishes anyway.
                    visibility.publish_status(self._thread)
                    self._thread.send_notices()
        finally:
            for task in running.values():
                task.cancel()
        for error in sorted(errors.values(), key=lambda each: isinstance(each, StepAbandoned)):
            raise error

    def _find_startable(self, taken: Container[str]) -> list[Call]:
        state = self._thread.state
        if self._thread.stopping or state.pause is not None:
            return []
        return [call for call in state.calls if call.id not in taken and self.is_runnable(call)]

    async def _wait_for_change(
        self, running: Mapping[str, asyncio.Task[None]], errors: Container[str]
    ) -> None:
        """Wait for a result, a decision, or a deadline of an approval."""

        def has_changed() -> bool:
            if any(task.done() for task in running.values()):
                return True
            return any(call.id not in errors for call in self._find_startable(running))

        thread = self._thread
        timeout = deadlines.get_time_to_deadline(thread.state, thread.now_ms())
        try:
            await workflow.wait_condition(has_changed, timeout=timeout)
        except TimeoutError:
            thread.state = deadlines.apply_deadlines(thread.state, thread.now_ms())
            thread.send_notices()

    def take_report(self, report: Report) -> None:
        """Record the report of a sub-agent's thread, if a call waits for it."""
        for call in self._thread.state.calls:
            if call.child_id == report.child_id and call.report is None and call.result is None:
                reported = replace_values(call, report=report)
                self._thread.state = transitions.replace_call(self._thread.state, reported)

    async def _run(self, call_id: str) -> None:
        """Run a tool, start a sub-agent, or collect a sub-agent's answer: what the call needs next."""
        if not self._is_usable(call_id):
            self._withdraw(call_id)
            return
        call = self._find_call(call_id)
        result: ToolResult | None
        try:
            if not call.options.agent:
                result = await self._run_tool(call)
            elif not call.child_id:
                result = await self._start_child(call)
            else:
                result = await self._collect(call)
        except StepAbandoned:
            # Held, so it has not begun to run. If its grant has ended meanwhile, a person is asked.
            if self._thread.stopping or self._is_usable(call_id):
                raise
            self._withdraw(call_id)
            return
        except (ActivityError, ChildWorkflowError) as error:
            if is_cancelled_exception(error):
                raise
            if call.options.once and isinstance(error, ActivityError) and _may_have_run(error):
                self._ask_outcome(call_id, _find_cause(error))
                return
            # The model reads the failure, and may try another way.
            what = f"tool {call.tool!r} failed"
            reason = describe_failure(what, error) if isinstance(error, ActivityError) else what
            result = self._build_error(call, reason)
        if result is not None:
            state = self._thread.state
            self._thread.state = transitions.add_result(state, self._find_call(call_id), result)

    def _is_usable(self, call_id: str) -> bool:
        thread = self._thread
        return approvals.is_usable(thread.state, self._find_call(call_id), thread.now_ms())

    def _withdraw(self, call_id: str) -> None:
        thread = self._thread
        call = self._find_call(call_id)
        thread.state = approvals.withdraw(thread.state, call, thread.now_ms())

    def _ask_outcome(self, call_id: str, cause: UnknownCause) -> None:
        """Have a person say what became of a call, instead of telling the model that it failed."""
        thread = self._thread
        call = self._find_call(call_id)
        thread.state = outcomes.ask(thread.state, call, cause, thread.now_ms())

    async def _run_tool(self, call: Call) -> ToolResult:
        context = self._thread.context()
        if call.options.once:
            call = self._begin_attempt(call, context)
        # Each field adds to the history of every step. `last_run` is for spans of whole turns, and a
        # tool call ends no turn. Most tools do not read the context, so they need no snapshot.
        snapshot = context.snapshot if call.tool in CONTEXT_TOOLS else None
        run = ToolRun(
            context=replace_values(context, last_run="", snapshot=snapshot),
            call_id=call.call_id,
            tool=call.tool,
            approved=call.approved,
            acts_on=call.sent,
            inline_bytes_max=max(
                limits.ENTRY_BODY_BYTES_MAX,
                limits.STEP_RESULTS_BYTES_MAX // len(self._thread.state.calls),
            ),
            grant=_get_agent_grant(call),
            edit=call.edit,
            outcome_id=get_outcome_id(call) if call.options.once else "",
            idempotency_key=call.idempotency_key if call.attempts > 1 else "",
        )
        retry_policy = build_retry_policy(call.options.attempts_max or limits.CALL_ATTEMPTS_MAX)
        return await self._executor.execute(
            RUN_TOOL,
            run,
            ToolResult,
            retry_policy,
            should_abandon=lambda: not self._is_usable(call.id),
        )

    def _begin_attempt(self, call: Call, context: Context) -> Call:
        """Count an attempt, and note its idempotency key: it may be all that is known of the attempt."""
        info = workflow.info()
        head = "" if context.head is None else context.head.ref.digest
        key = compute_idempotency_key(info.namespace, info.workflow_id, head, call.call_id)
        self._thread.state = outcomes.begin_attempt(self._thread.state, call, key)
        return self._find_call(call.id)

    async def _start_child(self, call: Call) -> ToolResult | None:
        """Start a sub-agent's thread. It outlives this run, and reports to the then current run."""
        parent = self._thread.parent
        depth = 1 if parent is None else parent.depth + 1
        if depth > limits.CHILD_DEPTH_MAX:
            return self._build_error(
                call, f"sub-agents may be nested {limits.CHILD_DEPTH_MAX} levels deep at most"
            )
        info = workflow.info()
        # A random id: after a reset, a child of the abandoned branch cannot answer for this branch.
        child_id = transitions.build_child_id(
            info.workflow_id, call.options.agent, workflow.uuid4().hex[:12]
        )
        brief = Brief(
            context=self._thread.context(),
            call_id=call.call_id,
            tool=call.tool,
            child_id=child_id,
            grant=_get_agent_grant(call),
        )
        briefed = await self._executor.execute(
            BRIEF,
            brief,
            BriefResult,
            _OURS,
            should_abandon=lambda: not self._is_usable(call.id),
        )
        if briefed.message is None:
            return briefed.refused
        # Record the id first: the child's report may arrive in the same task as the event of its start.
        started = replace_values(self._find_call(call.id), child_id=child_id)
        self._thread.state = transitions.replace_call(self._thread.state, started)
        counters = Counters(messages=1, written_bytes=briefed.message.stored_bytes)
        state = ThreadState(inbox=(briefed.message,), counters=counters)
        start = ThreadStart(
            agent=call.options.agent,
            state=state,
            parent=Parent(thread_id=info.workflow_id, depth=depth),
        )
        # After a reset to a point between the choice of the id and the start, the child runs already.
        # It has the same task, and will report here.
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await workflow.start_child_workflow(
                AGENT_WORKFLOW,
                start,
                id=child_id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                search_attributes=(
                    build_start_attributes(call.options.agent)
                    if self._thread.state.attributes
                    else None
                ),
            )
        return None

    async def _collect(self, call: Call) -> ToolResult:
        report = call.report
        if report is None or report.head is None:
            return self._build_error(
                call, f"the sub-agent's thread {call.child_id!r} ended without a report"
            )
        collect = Collect(
            child_id=call.child_id, head=report.head, call_id=call.call_id, tool=call.tool
        )
        result = await self._executor.execute(COLLECT, collect, ToolResult, _OURS)
        self._thread.state = transitions.add_to_counters(
            self._thread.state, tokens=report.tokens, cost_usd=report.cost_usd
        )
        return result

    def _build_error(self, call: Call, reason: str) -> ToolResult:
        return build_error_result(call.call_id, call.tool, reason, self._thread.now_ms())

    def _find_call(self, call_id: str) -> Call:
        return next(call for call in self._thread.state.calls if call.id == call_id)


def _get_agent_grant(call: Call) -> str:
    """Return the id of the agent's grant that allows a call; empty without one."""
    return "" if is_thread_grant(call.grant) else call.grant


def _may_have_run(error: ActivityError) -> bool:
    """Whether the tool may have run, or still runs. What a tool raises is a result, not a failure."""
    if get_failure_type(error) == names.CALL_NOT_FOUND:
        return False
    timeout = error.cause if isinstance(error.cause, TemporalTimeoutError) else None
    return timeout is None or timeout.type != TimeoutType.SCHEDULE_TO_START


def _find_cause(error: ActivityError) -> UnknownCause:
    """Return why the outcome of a call is unknown."""
    match get_failure_type(error):
        case names.CALL_TIMED_OUT:
            return "timeout"
        case names.OUTCOME_UNCLEAR:
            return "unclear"
        case "" | names.WORKER_SHUTDOWN:
            return "lost"
    return "unsaved"
