"""A fake approver: decides tool calls by a rule while a test runs, and records what it was asked."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from everlong.client.thread import ThreadHandle
from everlong.errors import DecisionRefused, NotAnswered, ThreadNotFound
from everlong.models import Approval

_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.5
_NAME: Final = "tester"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AskedCall:
    """A tool call that the approver was asked about."""

    approval_id: str
    tool: str
    arguments: dict[str, Any]
    approvers: tuple[str, ...] = ()
    """Names that may decide; empty for everyone."""
    escalated: bool = False
    """Whether its deadline has passed it on to `approvers`."""
    approved: bool | None = None
    """The decision; None if the rule left the call to others."""


Rule: TypeAlias = bool | Mapping[str, bool] | Callable[[AskedCall], bool | None]


class FakeApprover:
    """Approves or denies the calls of a thread by a rule.

    Args:
        rule: True approves all calls, False denies them. A mapping decides by the tool's name, a
            function by the call; None, or no entry, leaves the call to wait.
        by: Name of the approver. By default the first that the tool names, or else "tester".
        reason: Reason of the decisions, which the model reads after a denial.

    """

    def __init__(self, rule: Rule = True, *, by: str = "", reason: str = "") -> None:
        self._rule = rule
        self._by = by
        self._reason = reason
        self.asked: list[AskedCall] = []
        """The calls that it was asked about, in order. An escalated call is here twice."""

    async def watch(self, thread: ThreadHandle) -> None:
        """Decide the calls of a thread until it ends. `run_agent` does this for its thread."""
        seen: set[tuple[str, bool]] = set()
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                # Not the bounded wait of a `DrivenThread`: a thread may rest for as long as it likes.
                await ThreadHandle.wait_until(thread, lambda progress: progress.pending > 0)
            except ThreadNotFound:  # It starts with its first message.
                await asyncio.sleep(_PAUSE_SECONDS_MIN)
                continue
            except NotAnswered:  # It has ended.
                return
            waiting = await thread.approvals()
            new = [each for each in waiting if (each.id, each.escalated) not in seen]
            for approval in new:
                seen.add((approval.id, approval.escalated))
                await self._decide(thread, approval)
            # A call that was left to others stays pending, and its escalation is in no progress.
            pause = _PAUSE_SECONDS_MIN if new else min(2 * pause, _PAUSE_SECONDS_MAX)
            await asyncio.sleep(pause)

    async def _decide(self, thread: ThreadHandle, approval: Approval) -> None:
        asked = AskedCall(
            approval_id=approval.id,
            tool=approval.tool,
            arguments=json.loads(await thread.arguments(approval) or "{}"),
            approvers=approval.approvers,
            escalated=approval.escalated,
        )
        approve = self._judge(asked)
        self.asked.append(dataclasses.replace(asked, approved=approve))
        if approve is None:
            return
        try:
            for by in self._choose_names(approval, approve=approve):
                await thread.decide(approval.id, approve=approve, by=by, reason=self._reason)
        except DecisionRefused:
            # The test or the deadline was first, unless the call still waits.
            if any(each.id == approval.id for each in await thread.approvals()):
                raise

    def _choose_names(self, approval: Approval, *, approve: bool) -> Sequence[str]:
        """Return who decides: as many people as the call needs, unless the test names one."""
        if self._by:
            return [self._by]
        count = approval.needed if approve else 1
        others = [f"{_NAME}-{number}" for number in range(2, count + 1)]
        return (approval.approvers or (_NAME, *others))[:count]

    def _judge(self, asked: AskedCall) -> bool | None:
        if isinstance(self._rule, bool):
            return self._rule
        if isinstance(self._rule, Mapping):
            return self._rule.get(asked.tool)
        return self._rule(asked)
