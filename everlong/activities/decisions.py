"""Checks of decisions: changed arguments, and grants for later calls.

The workflow has neither the tool nor the arguments. So a worker validates what a person has changed with
the tool's signature, and stores it; a bad change is refused to the person, and nothing is decided.
"""

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import to_json

from everlong import limits
from everlong.activities.builtin_tools import find_builtin
from everlong.activities.heartbeat import Heartbeat
from everlong.activities.tool_calls import find_call
from everlong.agents import Agent, Tool
from everlong.models import (
    CheckDecision,
    DecisionCheck,
    Edit,
    Kind,
    ModelCall,
    Ref,
    ToolCall,
    WantedCall,
    make_printable,
)
from everlong.models.grants import digest_arguments
from everlong.models.tools import EDITED_ARGUMENTS, EditedArguments
from everlong.storage.agent_grants import AgentGrants, explain_count, find_grants
from everlong.storage.context_store import ContextStore
from everlong.storage.pack_store import PackStore

# Faults of arguments that a person sees.
_FAULTS_MAX = 5


class Decisions:
    """Checks the decisions on the calls of one thread."""

    def __init__(self, packs: PackStore, thread: str, namespace: str) -> None:
        self._packs = packs
        self._thread = thread
        self._contexts = ContextStore(packs, thread)
        self.grants = AgentGrants(packs, namespace)

    async def check(
        self, check: CheckDecision, agent: Agent | None, beat: Heartbeat
    ) -> DecisionCheck:
        """Validate a decision, and store changed arguments."""
        name = check.context.agent
        if agent is None:
            return DecisionCheck(
                refused=f"a worker that has no agent {name!r} got the decision; start one that does"
            )
        tool = find_builtin(check.tool) or agent.find_tool(check.tool)
        if tool is None:
            return DecisionCheck(refused=f"agent {name!r} has no tool {check.tool!r} any more")
        if check.match and not tool.call_options.always:
            return DecisionCheck(refused=f"each call of {tool.name!r} needs its own approval")
        if check.arguments is None:
            return await self._check_always(check, tool)
        text = to_json(check.arguments).decode()
        try:
            tool.parse(text)
        except ValidationError as error:
            return DecisionCheck(
                refused=f"{tool.name!r} does not accept these arguments: {_describe_faults(error)}"
            )
        edited = EditedArguments(arguments=check.arguments, by=check.by)
        data = EDITED_ARGUMENTS.dump_json(edited)
        ref, written_bytes = await beat.retry_until_timeout(
            lambda: self._packs.write_body(self._thread, Kind.ARGUMENTS, data)
        )
        return DecisionCheck(
            edit=Edit(digest=ref.digest, size_bytes=ref.size_bytes, number=check.number),
            preview=make_printable(text, limits.CALL_PREVIEW_CHARS_MAX),
            written_bytes=written_bytes,
        )

    async def _check_always(self, check: CheckDecision, tool: Tool) -> DecisionCheck:
        if check.scope == "agent":
            active = [
                each
                for each in await self.grants.list(check.context.agent)
                if each.is_active(check.context.now_ms)
            ]
            if reason := explain_count(len(active) + 1, check.context.agent):
                return DecisionCheck(refused=reason)
        if check.match != "arguments":
            return DecisionCheck()
        _, call = await find_call(self._contexts, check.context, check.call_id)
        digest = _digest_call(tool, call)
        if not digest:  # An empty one would stand for any arguments.
            return DecisionCheck(
                refused=f"the arguments of this call of {tool.name!r} cannot be compared with those of "
                "later calls: JSON does not hold all of their values. Approve this call alone, or all "
                "calls of the tool"
            )
        return DecisionCheck(arguments_digest=digest)

    async def load_edit(self, edit: Edit) -> EditedArguments:
        """Return arguments that a person has changed."""
        ref = Ref(
            thread=self._thread,
            digest=edit.digest,
            size_bytes=edit.size_bytes,
            kind=Kind.ARGUMENTS,
        )
        return await self._packs.parse_body(ref, _parse_edited)

    async def apply_grants(
        self, call: ModelCall, agent: Agent, wanted: Sequence[WantedCall], calls: Sequence[ToolCall]
    ) -> tuple[WantedCall, ...]:
        """Note the grants that allow calls of a reply. The store is asked only if a call needs one."""
        if not any(map(_accepts_grant, wanted)):
            return tuple(wanted)
        now_ms = call.context.now_ms
        grants = (*call.grants, *await find_grants(self.grants, agent.name, now_ms))
        if not grants:
            return tuple(wanted)
        found: list[WantedCall] = []
        for each, given in zip(wanted, calls, strict=True):
            tool = agent.find_tool(each.tool)
            if tool is not None and _accepts_grant(each):
                digest = _digest_call(tool, given)
                allowed = (grant for grant in grants if grant.allows(each, digest, now_ms))
                if (grant := next(allowed, None)) is not None:
                    each = _add_grant(each, grant.id, grant.by)
            found.append(each)
        return tuple(found)


def _accepts_grant(wanted: WantedCall) -> bool:
    options = wanted.options
    return options.needs_approval and options.always and options.approvals_needed == 1


def _add_grant(wanted: WantedCall, grant_id: str, by: str) -> WantedCall:
    return WantedCall(**{**vars(wanted), "grant": grant_id, "granted_by": by})


def _digest_call(tool: Tool, call: ToolCall) -> str:
    """Return the digest of a call's arguments, as the tool gets them; empty if there is none.

    There is none for invalid arguments, nor for those that JSON does not hold whole, such as a
    `SecretStr`: other values would have the same digest.
    """
    try:
        arguments = tool.parse(call.arguments)
        data = to_json(arguments, serialize_unknown=True).decode()
        if tool.parse(data) != arguments:
            return ""
        return digest_arguments(tool.name, arguments)
    except Exception:  # noqa: BLE001 - validators are the user's code; on any error a person decides
        return ""


def _parse_edited(data: bytes) -> EditedArguments:
    return EDITED_ARGUMENTS.validate_json(data)


def _describe_faults(error: ValidationError) -> str:
    """Return what is wrong with arguments, without the values: the text gets into the history."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    texts = [
        f"{'.'.join(str(part) for part in fault['loc']) or 'arguments'}: {fault['msg']}"
        for fault in faults[:_FAULTS_MAX]
    ]
    more = f"; {len(faults) - _FAULTS_MAX} more" if len(faults) > _FAULTS_MAX else ""
    return make_printable("; ".join(texts), 2 * limits.REASON_CHARS_MAX) + more


def describe_edit(edited: EditedArguments) -> str:
    """Return what the model reads about changed arguments, before the call's result."""
    data = to_json(edited.arguments)
    shown = data[: limits.EDIT_SHOWN_BYTES_MAX].decode(errors="ignore")
    cut = " ..." if len(data) > limits.EDIT_SHOWN_BYTES_MAX else ""
    by = make_printable(edited.by, limits.CALL_NAME_CHARS_MAX)
    return f"[{by} approved this call with other arguments; it ran with {shown}{cut}]\n"
