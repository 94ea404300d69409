"""The activities of a thread.

Each may run more than once for one step, for example after a worker was killed or a result was lost.
Stored objects are named by their content and count only once the workflow has their ref, so a second run
does not harm the thread. A tool's own effects happen at least once.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from everlong import compaction, limits
from everlong.activities.builtin_tools import Session, find_builtin, use_session
from everlong.activities.call_status import signal_status, track_call
from everlong.activities.compaction import CompactionPlan, plan_compaction, write_summary
from everlong.activities.decisions import Decisions, describe_edit
from everlong.activities.heartbeat import Heartbeat, build_held_error, heartbeat
from everlong.activities.live_output import report_reply, report_tool
from everlong.activities.model_calls import (
    build_messages,
    build_step_info,
    build_wanted_calls,
    chat,
    find_evicted,
)
from everlong.activities.notify import find_wanted, mark_quiet
from everlong.activities.tool_calls import (
    ApprovalGate,
    ToolThreads,
    build_call_info,
    describe_ended_grant,
    describe_invalid_arguments,
    find_call,
    run_call,
)
from everlong.agents import Agent, Reply, set_current_call
from everlong.errors import BlobMissing, RefRefused
from everlong.live import LiveSender
from everlong.models import (
    APPEND_JOURNAL,
    BRIEF,
    CALL_MODEL,
    CHECK_DECISION,
    COLLECT,
    COMPACT,
    MESSAGE_LOST,
    RUN_TOOL,
    STORE_GRANT,
    Append,
    AppendResult,
    Brief,
    BriefResult,
    CheckDecision,
    Collect,
    Compact,
    CompactResult,
    Context,
    DecisionCheck,
    Entry,
    Kind,
    Message,
    ModelCall,
    ModelTurn,
    SendMessage,
    Status,
    StoreGrant,
    ToolCall,
    ToolResult,
    ToolRun,
    build_entry,
    build_error_result,
    build_lost_entry,
    failure_digest,
    seq_after,
    short_digest,
    thread_key,
)
from everlong.models.json_payloads import from_raw, to_raw
from everlong.notify.sinks import Notify
from everlong.policy import Policy
from everlong.storage.context_store import ContextStore, write_message
from everlong.storage.instrumented import Reads, count_reads
from everlong.storage.objects import run_in_thread
from everlong.storage.pack_store import PackStore
from everlong.telemetry import Telemetry
from everlong.telemetry.spans import COMPACT as COMPACT_SPAN
from everlong.telemetry.spans import RecentRuns, ResumeSummary
from everlong.telemetry.steps import StepRecorder, get_provider_and_model

InputT = TypeVar("InputT")

_POLICY = Policy()


class AgentActivities:
    """The activities of the agents that one worker runs."""

    def __init__(
        self,
        packs: PackStore,
        agents: Iterable[Agent],
        policy: Policy | None = None,
        telemetry: Telemetry | None = None,
        resumes: RecentRuns[ResumeSummary] | None = None,
        live: LiveSender | None = None,
        notify: Notify | None = None,
    ) -> None:
        self._packs = packs
        self._agents = {each.name: each for agent in agents for each in agent.family}
        self._policy = policy or Policy()  # For agents without a policy of their own.
        self._notify = notify
        self._tools = ToolThreads()
        telemetry = telemetry or Telemetry()
        self._recorder = StepRecorder(telemetry)
        for agent in self._agents.values():
            telemetry.spans.providers[agent.name] = get_provider_and_model(agent)[0]
        self._resumes = resumes or RecentRuns()
        self._live = live
        self.attribute_namespaces: set[str] = set()
        """Namespaces that are known to have our search attributes. The plugin adds them."""

    @property
    def has_attributes(self) -> bool:
        """Whether threads in the namespace of this activity may write our search attributes."""
        return activity.info().namespace in self.attribute_namespaces

    def list_activities(self) -> list[Callable[..., Any]]:
        """Return the activities that a worker must register."""
        return [
            _define_activity(CALL_MODEL, self.call_model, ModelCall),
            _define_activity(RUN_TOOL, self.run_tool, ToolRun),
            _define_activity(APPEND_JOURNAL, self.append_journal, Append),
            _define_activity(COMPACT, self.compact, Compact),
            _define_activity(BRIEF, self.build_child_message, Brief),
            _define_activity(COLLECT, self.store_child_answer, Collect),
            _define_activity(CHECK_DECISION, self.check_decision, CheckDecision),
            _define_activity(STORE_GRANT, self.store_grant, StoreGrant),
        ]

    async def close(self) -> None:
        """Close the connections of models and of live output. A later call opens new ones."""
        if self._live is not None:
            await asyncio.to_thread(self._live.close)
        for agent in self._agents.values():
            model = vars(agent).get("resolved_model")  # Cached at its first use.
            if model is not None and model is not agent.model:  # A team's own model stays open.
                await model.close()

    async def call_model(self, call: ModelCall) -> ModelTurn:
        """Load the context, call the model, and journal the tail and the reply in one append."""
        context = call.context
        agent = self._find_agent(context.agent)
        contexts, recorder = self._open_contexts(), self._recorder
        seq = seq_after(context.head, call.tail)
        async with (
            self._run_step("model", context) as (beat, reads),
            # Inside, so that a reply counts as done only once it is journalled.
            report_reply(self._live, seq) as on_text,
        ):
            await beat.retry_or_hold(lambda: _check_arrived(contexts, call.tail))
            past = await beat.retry_or_hold(
                lambda: contexts.load_context(context, self._get_policy(agent), call.tail)
            )
            await _signal_release(context)
            messages = build_messages(past, agent)
            recorder.record_act("message", call.acts_on, context)
            compacted = past.base is not None
            reply, message = await chat(
                recorder, agent, context, messages, on_text, compacted=compacted
            )
            wanted_calls = await build_wanted_calls(
                agent, message.tool_calls, self._tools, past.policy
            )
            wanted_calls = await self._open_decisions().apply_grants(
                call, agent, wanted_calls, message.tool_calls
            )
            wanted_calls = mark_quiet(self._notify, agent.name, wanted_calls)
            now_ms = _now_ms()
            resumed = self._resumes.pop(activity.info().workflow_run_id or "") or ResumeSummary()
            context_bytes = compaction.measure_messages(messages)
            entry = dataclasses.replace(
                build_entry(seq, Kind.REPLY, message, now_ms),
                tokens=reply.tokens,
                cost_usd=reply.cost_usd,
                step=build_step_info(call, context_bytes, resumed),
            )
            head, written_bytes = await beat.retry_until_timeout(
                lambda: contexts.journal.append(context.head, [*call.tail, entry])
            )
        recorder.record_written("model", agent.name, context.turn, written_bytes)
        recorder.record_sizes(call, context_bytes, past.policy.compact_at_bytes)
        recorder.record_entries(call.tail, agent.name, context.turn)
        if not wanted_calls:
            recorder.record_turn_end(agent.name, context.turn, context.last_run, "answered")
        return ModelTurn(
            head=head,
            tool_calls=wanted_calls,
            context_bytes=context_bytes,
            context_tokens=reply.input_tokens,
            written_bytes=_count_stored_bytes(written_bytes, reads),
            tokens=reply.tokens,
            cost_usd=reply.cost_usd,
            policy=self._get_policy(agent).fields() if context.policy is None else None,
            evicted=find_evicted(past),
            time_ms=now_ms,
            attributes=self.has_attributes,
            resume_ms=resumed.ms,
            notify=find_wanted(self._notify, agent.name),
        )

    async def run_tool(self, run: ToolRun) -> ToolResult:
        """Run one tool call of the newest reply, and store its result."""
        agent = self._find_agent(run.context.agent)
        contexts, recorder = self._open_contexts(), self._recorder
        async with (
            self._run_step("tool", run.context) as (beat, reads),
            report_tool(self._live, run) as on_progress,
        ):
            # The call's arguments may be large, so they come from the journal and not from the history.
            head, call = await beat.retry_or_hold(
                lambda: find_call(contexts, run.context, run.call_id)
            )
            decisions, edited = self._open_decisions(), None
            if (edit := run.edit) is not None:
                edited = await beat.retry_or_hold(lambda: decisions.load_edit(edit))
                arguments = to_json(edited.arguments).decode()
                call = dataclasses.replace(call, arguments=arguments)
            await _signal_release(run.context)
            session = Session(
                contexts=contexts,
                head=head,
                load=lambda: contexts.load_context(run.context, self._get_policy(agent)),
            )
            info = build_call_info(agent, head, run, on_progress)
            policy = self._find_policy(run.context, agent)
            gate = ApprovalGate(policy, decisions.grants, beat, self._tools)
            if run.acts_on is not None:
                recorder.record_act("approval", [run.acts_on], run.context)
            known = agent.find_tool(call.tool) or find_builtin(call.tool)
            recording = recorder.record_tool_call(run.context, call, tool=known)
            with set_current_call(info), use_session(session), recording as record_outcome:
                outcome, text, bytes_max = await run_call(agent, run, call, beat, self._tools, gate)
                record_outcome(outcome, text)
            digest = short_digest(text) if outcome == "ok" else failure_digest(text)
            if edited is not None:
                text = describe_edit(edited) + text
            message = Message(role="tool", text=text, call_id=call.id, tool=call.tool)
            now_ms = _now_ms()
            with recorder.record_offload(run.context) as stored:
                entry, written_bytes = await beat.retry_until_timeout(
                    lambda: write_message(
                        contexts.journal,
                        Kind.TOOL_RESULT,
                        message,
                        now_ms,
                        bytes_max,
                        inline_bytes_max=run.inline_bytes_max,
                    )
                )
                stored(entry.size_bytes, written_bytes)
        recorder.record_written("tool", agent.name, run.context.turn, written_bytes)
        return ToolResult(
            entry=entry,
            written_bytes=_count_stored_bytes(written_bytes, reads),
            outcome=outcome,
            digest=digest,
            memory=session.memory,
        )

    async def check_decision(self, check: CheckDecision) -> DecisionCheck:
        """Validate a decision that changes arguments or allows later calls; store the arguments."""
        agent = self._agents.get(check.context.agent)
        async with heartbeat(self._recorder.count_hold) as beat:
            return await self._open_decisions().check(check, agent, beat)

    async def store_grant(self, stored: StoreGrant) -> DecisionCheck:
        """Store a grant of an agent."""
        grants = self._open_decisions().grants
        async with heartbeat(self._recorder.count_hold):
            return DecisionCheck(refused=await grants.add(stored.grant, _now_ms()))

    async def append_journal(self, append: Append) -> AppendResult:
        """Journal entries that do not wait for the next model call."""
        contexts, recorder = self._open_contexts(), self._recorder
        with count_reads(writes=True) as reads:
            async with heartbeat(recorder.count_hold) as beat:
                entries = await beat.retry_or_hold(lambda: _replace_lost(contexts, append.entries))
                head, written_bytes = await beat.retry_or_hold(
                    lambda: contexts.journal.append(append.head, entries)
                )
        turn = append.ended or append.turn
        recorder.record_written("journal", append.agent, turn, written_bytes)
        recorder.record_entries(entries, append.agent, turn)
        recorder.record_turn_end(
            append.agent, append.ended, append.last_run, "failed", append.error_type
        )
        return AppendResult(head=head, written_bytes=_count_stored_bytes(written_bytes, reads))

    async def compact(self, compact: Compact) -> CompactResult:
        """Make a smaller snapshot of the last snapshot and the entries after it."""
        recorder = self._recorder
        with recorder.open_span(COMPACT_SPAN, compact.context, {}) as span:
            done, plan = await self._compact(compact)
            recorder.record_compaction(
                span,
                compact,
                done,
                outcome=plan.outcome,
                strategy=plan.strategy,
                before=plan.before,
                after=plan.after,
            )
        context = compact.context
        recorder.record_written("compact", context.agent, context.turn, done.written_bytes)
        return done

    async def _compact(self, compact: Compact) -> tuple[CompactResult, CompactionPlan]:
        agent = self._find_agent(compact.context.agent)
        contexts = self._open_contexts()
        async with self._run_step("compact", compact.context) as (beat, reads):
            policy = self._get_policy(agent)
            past = await beat.retry_or_hold(
                lambda: contexts.load_to_compact(compact.context, policy, compact.keep_from_seq)
            )
            # In a thread, so that it does not block heartbeats and other activities.
            plan = await run_in_thread(plan_compaction, past, compact, agent)
            if not plan.is_used:
                if plan.outcome == "no_shrink":
                    activity.logger.warning(
                        "a compaction would free less than a fifth of %d bytes and is not used; the "
                        "next follows once the context has grown by a quarter. Raise compact_at_bytes, "
                        "or lower compact_to_bytes, memory_bytes_max or max_result_bytes.",
                        plan.before.size_bytes,
                    )
                return CompactResult(
                    snapshot=compact.context.snapshot,
                    before_bytes=plan.before.size_bytes,
                    after_bytes=plan.after.size_bytes,
                    written_bytes=0,
                    next_expiry_ms=plan.next_expiry_ms,
                ), plan
            written = Reply()
            if past.policy.summary:
                written = await write_summary(self._recorder, agent, compact.context, past)
                if written.text:
                    summarised = await run_in_thread(
                        plan_compaction, past, compact, agent, written.text
                    )
                    # A summary takes room from the notes; the result is used as it was without it.
                    plan = summarised if summarised.is_used else plan
            after_bytes = plan.after.size_bytes
            snapshot = plan.past.base
            assert snapshot is not None  # noqa: S101 - `plan_compaction` sets it
            stored, written_bytes = await beat.retry_until_timeout(
                lambda: contexts.write_snapshot(snapshot, after_bytes, compact.context.snapshot)
            )
        return CompactResult(
            snapshot=stored,
            before_bytes=plan.before.size_bytes,
            after_bytes=after_bytes,
            written_bytes=_count_stored_bytes(written_bytes, reads),
            next_expiry_ms=plan.next_expiry_ms,
            summarised=bool(snapshot.summary and written.text),
            expired=plan.expired,
            tokens=written.tokens,
            cost_usd=written.cost_usd,
        ), plan

    async def build_child_message(self, brief: Brief) -> BriefResult:
        """Return the first message of a sub-agent's thread. A long one is stored among its objects."""
        agent = self._find_agent(brief.context.agent)
        child = self._open_contexts(brief.child_id).journal
        now_ms = brief.context.now_ms
        async with heartbeat(self._recorder.count_hold) as beat:
            _, call = await beat.retry_or_hold(
                lambda: find_call(self._open_contexts(), brief.context, brief.call_id)
            )
            grants = self._open_decisions().grants
            if brief.grant and not await beat.retry_or_hold(
                lambda: grants.has(agent.name, brief.grant)
            ):
                reason = f"{describe_ended_grant(call.tool)} Nothing was started; call it again."
                return BriefResult(refused=build_error_result(call.id, call.tool, reason, now_ms))
            tool = agent.find_tool(call.tool)
            if tool is None:
                return BriefResult(
                    refused=_build_refusal(call, f"there is no tool {call.tool!r}", now_ms)
                )
            try:
                request = str(tool.parse(call.arguments)["request"])
            except ValidationError as error:
                return BriefResult(
                    refused=_build_refusal(call, describe_invalid_arguments(error), now_ms)
                )
            # This span marks the request only. The sub-agent's thread has spans of its own work.
            with self._recorder.record_tool_call(
                brief.context, call, tool=tool, child_id=brief.child_id
            ) as record_outcome:
                record_outcome("ok", "")
            if len(to_json(request)) <= limits.MESSAGE_BYTES_MAX // 2:
                return BriefResult(message=SendMessage(text=request or "(no request)"))
            message = Message(role="user", text=request)
            with count_reads(writes=True) as reads:
                entry, written_bytes = await beat.retry_or_hold(
                    lambda: write_message(
                        child, Kind.MESSAGE, message, now_ms, limits.SHOWN_BYTES_MAX
                    )
                )
        return BriefResult(
            message=SendMessage(
                ref=entry.ref,
                original=entry.original,
                stored_bytes=_count_stored_bytes(written_bytes, reads),
            )
        )

    async def store_child_answer(self, collect: Collect) -> ToolResult:
        """Store a sub-agent's answer in the parent's thread, as the result of the call."""
        journal = self._open_contexts().journal
        child = self._open_contexts(collect.child_id).journal
        async with heartbeat(self._recorder.count_hold) as beat:

            async def read_answer() -> Message:
                try:
                    # The newest reply or failure is within one step of the end of the journal.
                    newest = await child.last(collect.head, (Kind.REPLY, Kind.FAILURE))
                except RefRefused:  # The sender of the report was not the sub-agent.
                    return Message(role="failure", text="the reported journal is not its own")
                if newest is None:
                    return Message(role="failure", text="it ended before it could answer")
                [message] = await child.messages([newest])
                return message

            answer = await beat.retry_or_hold(read_answer)
            failed = answer.role == "failure" or bool(answer.tool_calls)
            text = f"error: {answer.text or 'broken off'}" if failed else answer.text
            message = Message(role="tool", text=text, call_id=collect.call_id, tool=collect.tool)
            now_ms = _now_ms()
            with count_reads(writes=True) as reads:
                entry, written_bytes = await beat.retry_until_timeout(
                    lambda: write_message(
                        journal, Kind.TOOL_RESULT, message, now_ms, limits.SHOWN_BYTES_MAX
                    )
                )
        return ToolResult(
            # The only record of the sub-agent's thread: the workflow forgets its id with the call.
            entry=dataclasses.replace(entry, data={"thread_id": collect.child_id}),
            written_bytes=_count_stored_bytes(written_bytes, reads),
            outcome="failed" if failed else "ok",
            digest=failure_digest(text) if failed else short_digest(text),
        )

    @contextlib.asynccontextmanager
    async def _run_step(
        self, step: str, context: Context
    ) -> AsyncIterator[tuple[Heartbeat, Reads]]:
        """Send heartbeats, and count the bytes that are read and stored, while the body runs."""
        with self._recorder.record_step(step, context) as reads:
            async with heartbeat(self._recorder.count_hold) as beat:
                yield beat, reads

    def find_policy(self, name: str) -> Policy | None:
        """Return the policy of an agent; None if this worker does not have the agent."""
        agent = self._agents.get(name)
        return None if agent is None else self._get_policy(agent)

    def _find_agent(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            self._recorder.count_hold("AgentNotFound")
            raise build_held_error(
                f"AgentNotFound: a worker runs no agent {name!r}, only {sorted(self._agents)}. Start a "
                "worker that does, on the same task queue."
            ) from None

    def _get_policy(self, agent: Agent) -> Policy:
        return self._policy if agent.policy == _POLICY else agent.policy

    def _find_policy(self, context: Context, agent: Agent) -> Policy:
        """Return the policy of a thread."""
        own = self._get_policy(agent)
        return own if context.policy is None else Policy().with_changes(context.policy)

    def _open_decisions(self) -> Decisions:
        info = activity.info()
        thread = thread_key(info.namespace, info.workflow_id or "")
        return Decisions(self._packs, thread, info.namespace)

    def _open_contexts(self, thread_id: str = "") -> ContextStore:
        info = activity.info()
        key = thread_key(info.namespace, thread_id or info.workflow_id or "")
        return ContextStore(self._packs, key)


def _define_activity(
    name: str, run: Callable[[InputT], Awaitable[object]], input_type: type[InputT]
) -> Callable[[RawValue], Awaitable[RawValue]]:
    """Return an activity that converts its payloads itself. The SDK's conversion is slower."""

    @activity.defn(name=name)
    async def execute(raw: RawValue) -> RawValue:
        converter = activity.payload_converter()
        argument = from_raw(raw, input_type, converter)
        async with track_call(name, argument):
            return to_raw(await run(argument), converter)

    return execute


async def _signal_release(context: Context) -> None:
    """Signal the thread that a call which was held begins now: it may take long."""
    if context.after_hold:
        await signal_status(Status.WORKING)


async def _check_arrived(contexts: ContextStore, tail: Sequence[Entry]) -> None:
    """Fail the turn if its message is not in this store.

    Such a message was never stored here, so waiting for it would not help: it is not journalled yet. An
    object that a journal refers to was stored once, and can be restored; that is a hold instead.
    """
    try:
        await contexts.journal.messages([entry for entry in tail if _is_sent_as_ref(entry)])
    except BlobMissing as error:
        raise ApplicationError(
            f"the message is not in this store; its sender may use another store. {error}",
            type=MESSAGE_LOST,
            non_retryable=True,
        ) from None


async def _replace_lost(contexts: ContextStore, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with a notice in place of each message that is not in this store."""
    found: list[Entry] = []
    for entry in entries:
        try:
            if _is_sent_as_ref(entry):
                await contexts.journal.messages([entry])
        except BlobMissing:
            entry = build_lost_entry(entry)
        found.append(entry)
    return found


def _is_sent_as_ref(entry: Entry) -> bool:
    return entry.kind == Kind.MESSAGE and entry.ref is not None


def _build_refusal(call: ToolCall, reason: str, time_ms: int) -> ToolResult:
    return build_error_result(call.id, call.tool, reason, time_ms, outcome="refused")


def _count_stored_bytes(written_bytes: int, reads: Reads) -> int:
    """Return the bytes that a thread counts as stored by an activity.

    A retry also counts packs that exist already: usually an earlier attempt stored them, and its count
    was lost with its result.
    """
    return written_bytes + (reads.repeated_bytes if activity.info().attempt > 1 else 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
