"""Size policy: consumption is counted equally in every replay."""

import types

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from everlong import Policy, limits
from everlong.interceptors.run_history import Consumption
from everlong.models import CONSUMED_FUNCTION
from everlong.workflows import should_continue_as_new

NO_ANSWER = WorkflowActivationCompletion()


def payload(size: int) -> Payload:
    return Payload(metadata={"encoding": b"binary/plain"}, data=b"x" * size)


def test_results_and_signals_count_but_arguments_and_queries_do_not() -> None:
    activation = WorkflowActivation()
    activation.jobs.add().initialize_workflow.arguments.append(payload(10_000))
    activation.jobs.add().resolve_activity.result.completed.result.CopyFrom(payload(100))
    activation.jobs.add().signal_workflow.input.extend([payload(20), payload(3)])
    activation.jobs.add().query_workflow.arguments.append(payload(1000))
    consumption = Consumption()
    consumption.count_jobs(activation)
    assert consumption.get_bytes() == 123
    consumption.count_accepted_updates(NO_ANSWER)
    consumption.count_jobs(activation)
    assert consumption.get_bytes() == 246


def test_an_update_counts_once_it_is_accepted() -> None:
    activation = WorkflowActivation()
    for name in ("accepted", "refused"):
        update = activation.jobs.add().do_update
        update.protocol_instance_id = name
        update.input.append(payload(50))
    completion = WorkflowActivationCompletion()
    accepted = completion.successful.commands.add().update_response
    accepted.protocol_instance_id = "accepted"
    accepted.accepted.SetInParent()
    refused = completion.successful.commands.add().update_response
    refused.protocol_instance_id = "refused"
    refused.rejected.message = "no"
    consumption = Consumption()
    consumption.count_jobs(activation)
    assert consumption.get_bytes() == 0
    consumption.count_accepted_updates(completion)
    assert consumption.get_bytes() == 50


@pytest.mark.guarantee(113)
@pytest.mark.parametrize(
    ("events", "history_bytes", "suggested", "consumed", "answer"),
    [
        (10, 1000, False, 0, False),
        (10, 1000, False, None, False),
        (10, 1000, True, None, True),
        (400, 1000, False, 0, True),
        (10, limits.MIB, False, 0, True),
        (10, 1000, False, 32 * limits.MIB, False),
        (10, 1000, False, 32 * limits.MIB + 1000, True),
        # Plain payloads are in the history already, so the plugin changes no answer of such a run.
        (10, limits.MIB - 1, False, limits.MIB - 1, False),
    ],
)
def test_any_bound_of_the_policy_ends_a_run(
    monkeypatch: pytest.MonkeyPatch,
    events: int,
    history_bytes: int,
    suggested: bool,
    consumed: int | None,
    answer: bool,
) -> None:
    info = types.SimpleNamespace(
        get_current_history_length=lambda: events,
        get_current_history_size=lambda: history_bytes,
        is_continue_as_new_suggested=lambda: suggested,
    )
    functions = {} if consumed is None else {CONSUMED_FUNCTION: lambda: consumed}
    monkeypatch.setattr(workflow, "info", lambda: info)
    monkeypatch.setattr(workflow, "extern_functions", lambda: functions)
    assert should_continue_as_new() is answer
    assert should_continue_as_new(Policy(run_events_max=50)) is (answer or events >= 50)
