"""Codec usage: whether a run or a schedule has payloads that only Everlong's codec can read."""

from enum import IntEnum
from typing import Final

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec, WorkflowSerializationContext

from everlong.codecs.codec import INLINE_ENCODING
from everlong.codecs.composition import OuterCodec
from everlong.codecs.payloads import walk_payloads
from everlong.codecs.refs import is_ref
from everlong.errors import ConfigError
from everlong.sweep.history_reader import Histories, Run

# Part of every Everlong encoding. A byte search takes microseconds, and rules out most messages.
_MARK: Final = b"/everlong"
# Continue-as-new steps that are followed if a run rolls over while it is read.
_ROLLS_MAX: Final = 8


class CodecUsage(IntEnum):
    """Kinds of Everlong payloads in a run. Refs need the store; both kinds need the codec."""

    NOTHING = 0
    INLINE = 1
    """Compressed or sealed inline payloads, and no refs."""
    REFS = 2


class CodecUsageReader:
    """Finds Everlong payloads in the histories of a namespace.

    Args:
        histories: Histories of the namespace.
        codec: The client's codec. An outer codec around Everlong's is removed before the search.

    """

    def __init__(self, histories: Histories, codec: PayloadCodec | None = None) -> None:
        self._histories = histories
        self._outer = codec if isinstance(codec, OuterCodec) else None

    async def run(self, run: Run) -> CodecUsage:
        """Return the usage of a run: its history, and for an open run its memo and activities too."""
        run_id, found = run.run_id, CodecUsage.NOTHING
        for _ in range(_ROLLS_MAX):
            held, next_run_id = await self._history(run.workflow_id, run_id)
            found = max(found, held)
            if run.is_open and found is not CodecUsage.REFS:
                described = await self._histories.describe(run.workflow_id, run_id)
                for message in described.holds if described is not None else ():
                    found = max(found, await self._message(message, run.workflow_id))
            if found is CodecUsage.REFS or not (run.is_open and next_run_id):
                break
            # The run was open when it was listed, so no page of the listing has the next run.
            run_id = next_run_id
        return found

    async def schedule(self, schedule_id: str) -> CodecUsage:
        """Return the usage of a schedule: the runs that it starts begin with its payloads."""
        schedule = await self._histories.schedule(schedule_id)
        if schedule is None:
            return CodecUsage.NOTHING
        return await self._message(schedule, schedule.schedule.action.start_workflow.workflow_id)

    async def _history(self, workflow_id: str, run_id: str) -> tuple[CodecUsage, str]:
        """Return the usage of a history, read back to its newest ref, and the run that continues it."""
        found, next_run_id = CodecUsage.NOTHING, ""
        async for page in self._histories.events(workflow_id, run_id, 0):
            for event in page:
                rolled = event.workflow_execution_continued_as_new_event_attributes
                next_run_id = next_run_id or rolled.new_execution_run_id
                found = max(found, await self._message(event, workflow_id))
                if found is CodecUsage.REFS:
                    return found, next_run_id
        return found, next_run_id

    async def _message(self, message: Message, workflow_id: str) -> CodecUsage:
        """Return the usage of a message, at any depth."""
        found = CodecUsage.NOTHING
        if self._outer is None and _MARK not in message.SerializeToString():
            return found
        for payload, has_passed in walk_payloads(message):
            for each in await self._unwrap(payload, workflow_id) if has_passed else [payload]:
                if is_ref(each):
                    return CodecUsage.REFS
                if each.metadata.get("encoding") == INLINE_ENCODING:
                    found = CodecUsage.INLINE
        return found

    async def _unwrap(self, payload: Payload, workflow_id: str) -> list[Payload]:
        if self._outer is None:
            return [payload]
        context = WorkflowSerializationContext(
            namespace=self._histories.namespace, workflow_id=workflow_id
        )
        try:
            return await self._outer.with_context(context).unwrap([payload])
        except Exception as error:  # A team's own codec may raise anything, and quote anything.
            raise ConfigError(
                f"the outer codec {type(self._outer.outer).__name__} does not decode a payload of "
                f"workflow {workflow_id!r} ({type(error).__name__}), so refs cannot be counted. Run "
                "this where the outer codec has the keys of the workers."
            ) from error
