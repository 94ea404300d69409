"""The demo's check can fail: each claim, broken alone, is noticed."""

import dataclasses
import hashlib
from typing import Any

import pytest

from everlong.demo.agent import STEPS, build_expected_conversation
from everlong.demo.report import APPROVER, RUNAWAY_LIMIT, Report, find_false_claims, naive_bytes
from everlong.models import Counters, Decision, Message, Status, ThreadStatus
from everlong.policy import LimitHit
from everlong.testing import workload

EXPECTED = build_expected_conversation("What happened?")
RUNAWAY = ThreadStatus(
    agent="runaway",
    status=Status.DONE,
    counters=Counters(steps=14),
    head=None,
    waiting_messages=0,
    last_failure="",
    ended=LimitHit(limit=RUNAWAY_LIMIT, value=12, bound=12, action="stop"),
)
TRUE = Report(
    conversation=EXPECTED,
    history_bytes=200_000,
    blob_bytes=600_000,
    context_bytes=naive_bytes(EXPECTED) // 5,
    compactions=3,
    decisions=[Decision(id="130-1", tool="restart", asked_ms=1, approve=True, by=APPROVER)],
    by_person=False,
    runaway=RUNAWAY,
    runs=2,
    steps_at_kill=30,
    killed_returncode=-9,
    resume_ms=200.0,
    resume_events=365,
    outage_seconds=6.0,
)


def test_a_true_report_passes() -> None:
    assert find_false_claims(TRUE, EXPECTED) == []


@pytest.mark.parametrize(
    "change",
    [
        {"conversation": EXPECTED[:-1]},
        {"conversation": [*EXPECTED[:-1], Message(role="assistant", text="Read 60 pages.")]},
        {"conversation": [EXPECTED[0], EXPECTED[2], EXPECTED[1], *EXPECTED[3:]]},
        {"conversation": [*EXPECTED[:4], *EXPECTED[3:]]},
        {"history_bytes": naive_bytes(EXPECTED)},
        {"blob_bytes": naive_bytes(EXPECTED)},
        {"blob_bytes": 0},
        {"context_bytes": naive_bytes(EXPECTED)},
        {"context_bytes": 0},
        {"compactions": 0},
        {"decisions": []},
        {"decisions": [*TRUE.decisions, *TRUE.decisions]},
        {"decisions": [dataclasses.replace(TRUE.decisions[0], approve=False)]},
        {"decisions": [dataclasses.replace(TRUE.decisions[0], by="mallory")]},
        {"runaway": dataclasses.replace(RUNAWAY, status=Status.WORKING)},
        {"runaway": dataclasses.replace(RUNAWAY, ended=None)},
        {"runaway": dataclasses.replace(RUNAWAY, counters=Counters(steps=50))},
        {"runs": 1},
        {"steps_at_kill": 0},
        {"steps_at_kill": STEPS},
        {"killed_returncode": 0},
        {"killed_returncode": None},
        {"resume_ms": 0.0},
        {"resume_ms": 9000.0},
        {"resume_events": 0},
        {"outage_seconds": 0.1},
    ],
    ids=lambda change: ",".join(change),
)
def test_a_false_report_fails(change: dict[str, Any]) -> None:
    assert find_false_claims(dataclasses.replace(TRUE, **change), EXPECTED)


def test_the_script_asks_for_every_page_once_then_to_act_and_then_answers() -> None:
    calls = [call for message in EXPECTED for call in message.tool_calls]
    assert len({call.id for call in calls}) == len(calls) == STEPS + 1
    assert {call.tool for call in calls[:-1]} == {"search_logs", "run_sql"}
    assert calls[-1].tool == "restart"
    assert EXPECTED[-1].text == f"Read {STEPS} pages; billing restarted."


def test_naive_bytes_are_the_sum_of_all_lists() -> None:
    one = Message(role="user", text="x")
    two = Message(role="assistant", text="y")
    single = naive_bytes([one, two])
    assert naive_bytes([one, two, one, two]) == single + single + single + naive_bytes([two, two])


def test_the_workload_is_the_same_everywhere_and_of_the_promised_sizes() -> None:
    sizes = [len(workload.result(i)) for i in range(STEPS)]
    assert sorted(sizes) == [2048] * 48 + [32768] * 9 + [524288] * 3
    assert len({workload.result(i) for i in range(20)}) == 20
    # A golden value: what was generated once is what every machine generates.
    digest = hashlib.sha256("".join(workload.result(i) for i in range(STEPS)).encode())
    assert digest.hexdigest()[:16] == "f332f0bb9b7def1f"


def test_a_report_is_true_also_after_a_denial() -> None:
    denied = Decision(
        id="130-1", tool="restart", asked_ms=1, approve=False, by="ana", reason="not now"
    )
    expected = build_expected_conversation("What happened?", denied)
    assert expected[-1].text == f"Read {STEPS} pages; error: denied by ana: not now."
    report = dataclasses.replace(TRUE, conversation=expected, decisions=[denied], by_person=True)
    assert find_false_claims(report, expected) == []
    assert find_false_claims(dataclasses.replace(report, by_person=False), expected)
    assert find_false_claims(dataclasses.replace(report, conversation=EXPECTED), expected)
