"""What a worker checks of decisions: changed arguments, grants, and the policy's own approvals."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretStr
from temporalio.testing import ActivityEnvironment

from everlong import Agent, OutcomeUnknown, Policy, limits, tool
from everlong.activities import AgentActivities
from everlong.errors import ConfigError
from everlong.models import (
    Brief,
    CheckDecision,
    Context,
    Grant,
    Kind,
    Message,
    ModelCall,
    SegmentRef,
    StoreGrant,
    ToolRun,
    WantedCall,
    build_entry,
)
from everlong.models.grants import make_grant_id
from everlong.storage.pack_store import open_packs
from tests.support.scripted_agents import call
from tests.support.thread_driver import call_then_answer

ASKED = build_entry(1, Kind.MESSAGE, Message(role="user", text="go"), 1)
RAN: list[int] = []


@tool(needs_approval=True)
def pay(euros: Annotated[int, Field(le=100)], note: str = "") -> str:
    """Pay."""
    RAN.append(euros)
    return f"paid {euros}"


@tool(needs_approval=True, always=False)
def drop(table: str) -> str:
    """Drop a table."""
    return f"dropped {table}"


@tool(effects="once")
def transfer(euros: int) -> str:
    """Transfer."""
    raise OutcomeUnknown if euros else ValueError("no such account")


class Account(BaseModel):
    """An account."""

    name: str
    pin: int = Field(default=0, exclude=True)


@tool(needs_approval=True)
def log_in(password: SecretStr) -> str:
    """Log in."""
    return "in"


@tool(needs_approval=True)
def close(account: Account) -> str:
    """Close an account."""
    return "closed"


TOOLS = [pay, drop, transfer, log_in, close]


@dataclasses.dataclass
class Bench:
    """Activities of one agent, and the call that its model has asked for."""

    activities: AgentActivities
    policy: dict[str, Any]
    grants: tuple[Grant, ...] = ()
    env: ActivityEnvironment = dataclasses.field(default_factory=ActivityEnvironment)
    head: SegmentRef | None = None

    @property
    def context(self) -> Context:
        return Context(agent="ops", head=self.head, snapshot=None, now_ms=1000, policy=self.policy)

    async def ask(self) -> WantedCall:
        self.head = None
        asking = ModelCall(context=self.context, tail=(ASKED,), grants=self.grants)
        turn = await self.env.run(self.activities.call_model, asking)
        self.head = turn.head
        [wanted] = turn.tool_calls
        return wanted

    async def check(self, wanted: WantedCall, **fields: Any) -> Any:
        check = CheckDecision(
            context=self.context,
            call_id=wanted.call_id,
            tool=wanted.tool,
            by="ann",
            **fields,
        )
        return await self.env.run(self.activities.check_decision, check)

    async def run(self, wanted: WantedCall, **fields: Any) -> tuple[str, str]:
        run = ToolRun(context=self.context, call_id=wanted.call_id, tool=wanted.tool, **fields)
        result = await self.env.run(self.activities.run_tool, run)
        assert result.entry.body is not None
        return result.outcome, result.entry.body["parts"][0]["content"]


def open_bench(
    path: Path, name: str, policy: dict[str, Any] | None = None, **arguments: object
) -> Bench:
    model = call_then_answer(call(0, name, **arguments))
    agent = Agent(name="ops", model=model, tools=TOOLS)
    RAN.clear()
    return Bench(AgentActivities(open_packs(path.as_uri()), [agent]), policy or {})


@pytest.mark.guarantee(114)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"euros": 101}, "euros: Input should be less than or equal to 100"),
        ({"euros": "secret"}, "euros: Input should be a valid integer"),
        ({"note": "secret"}, "euros: Field required"),
        ({"euros": 1, "x": 2}, "x: Extra inputs are not permitted"),
        ({str(n): "secret" for n in range(50)}, "; 46 more"),
        ({"euros": {"a": [1] * 100}}, "euros: Input should be a valid integer"),
    ],
)
async def test_a_bad_change_is_refused_with_the_reason_and_without_the_value(
    tmp_path: Path, arguments: dict[str, Any], reason: str
) -> None:
    bench = open_bench(tmp_path, "pay", euros=5)
    wanted = await bench.ask()
    checked = await bench.check(wanted, arguments=arguments)
    assert reason in checked.refused
    assert "secret" not in checked.refused
    assert len(checked.refused) < 500
    assert checked.edit is None


async def test_a_change_is_stored_and_the_tool_gets_it(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "pay", euros=5)
    wanted = await bench.ask()
    checked = await bench.check(wanted, arguments={"euros": 7, "note": "\n\x00\u202e"}, number=3)
    assert checked.refused == ""
    assert (checked.edit.number, checked.written_bytes > 0) == (3, True)
    outcome, text = await bench.run(wanted, approved=True, edit=checked.edit)
    assert (outcome, RAN) == ("ok", [7])
    assert text.startswith("[ann approved this call with other arguments; it ran with {")
    assert text.endswith("]\npaid 7")


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("drop", {"match": "tool"}, "each call of 'drop' needs its own approval"),
        ("gone", {"match": "tool"}, "has no tool 'gone' any more"),
    ],
)
async def test_a_grant_is_refused_that_the_tool_does_not_accept(
    tmp_path: Path, name: str, fields: dict[str, Any], reason: str
) -> None:
    bench = open_bench(tmp_path, name, table="users")
    wanted = await bench.ask()
    assert reason in (await bench.check(wanted, **fields)).refused


async def test_a_worker_without_the_agent_decides_nothing(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "pay", euros=5)
    wanted = await bench.ask()
    bench.activities = AgentActivities(open_packs(tmp_path.as_uri()), [])
    checked = await bench.check(wanted, arguments={"euros": 7})
    assert "a worker that has no agent 'ops' got the decision" in checked.refused


@pytest.mark.guarantee(115)
async def test_a_grant_of_an_agent_is_used_and_its_revocation_stops_the_call(
    tmp_path: Path,
) -> None:
    bench = open_bench(tmp_path, "pay", euros=5)
    digest = (await bench.check(await bench.ask(), match="arguments")).arguments_digest
    grant = Grant(
        id=make_grant_id("agent", "1"),
        tool="pay",
        arguments_digest=digest,
        by="ann",
        granted_ms=1,
        agent="ops",
    )
    stored = await bench.env.run(bench.activities.store_grant, StoreGrant(grant=grant))
    assert stored.refused == ""
    wanted = await bench.ask()
    assert (wanted.grant, wanted.granted_by) == (grant.id, "ann")
    assert await bench.run(wanted, approved=True, grant=grant.id) == ("ok", "paid 5")
    # Revoked between the reply and the run.
    [path] = (tmp_path / "grants").rglob("*.json")
    path.unlink()
    outcome, text = await bench.run(wanted, approved=True, grant=grant.id)
    assert (outcome, RAN) == ("failed", [5])
    assert "the grant for it was revoked, or has expired. Nothing was run; call it again." in text
    assert (await bench.ask()).grant == ""


@pytest.mark.guarantee(115)
async def test_no_sub_agent_starts_once_its_grant_is_revoked(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "helper", request="look")
    helper = Agent(name="helper", model=call_then_answer(), description="Helps.")
    agent = Agent(
        name="ops", model=call_then_answer(call(0, "helper", request="look")), tools=[helper]
    )
    bench.activities = AgentActivities(open_packs(tmp_path.as_uri()), [agent])
    wanted = await bench.ask()
    brief = Brief(context=bench.context, call_id=wanted.call_id, tool="helper", child_id="ops/c")
    briefed = await bench.env.run(bench.activities.build_child_message, brief)
    assert briefed.message is not None
    assert (briefed.message.text, briefed.refused) == ("look", None)
    brief = dataclasses.replace(brief, grant=make_grant_id("agent", "1"))
    briefed = await bench.env.run(bench.activities.build_child_message, brief)
    assert briefed.message is None
    assert briefed.refused is not None
    assert "the grant for it was revoked, or has expired" in str(briefed.refused.entry.body)


async def test_a_grant_for_some_arguments_allows_no_others(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "pay", euros=5)
    digest = (await bench.check(await bench.ask(), match="arguments")).arguments_digest
    grant = Grant(
        id=make_grant_id("thread", "1"), tool="pay", arguments_digest=digest, by="ann", granted_ms=1
    )
    for arguments, allowed in (
        ({"euros": 5}, True),
        ({"note": "", "euros": 5}, True),  # As the tool gets them.
        ({"euros": 6}, False),
        ({"euros": 5, "note": "x"}, False),
    ):
        bench = open_bench(tmp_path, "pay", **arguments)
        bench.grants = (grant,)
        assert bool((await bench.ask()).grant) == allowed, arguments


@pytest.mark.parametrize(
    ("name", "arguments", "hidden"),
    [
        ("log_in", {"password": "a"}, True),
        ("close", {"account": {"name": "a", "pin": 1}}, True),
        ("close", {"account": {"name": "a"}}, False),
    ],
)
async def test_arguments_that_json_hides_get_no_grant_for_the_same_arguments(
    tmp_path: Path, name: str, arguments: dict[str, Any], hidden: bool
) -> None:
    bench = open_bench(tmp_path, name, **arguments)
    checked = await bench.check(await bench.ask(), match="arguments")
    assert ("cannot be compared" in checked.refused) == hidden
    assert bool(checked.arguments_digest) != hidden


RULES = {"approvals_needed": {"pa*": 2, "pay": 3, "transfer": 1}}


@pytest.mark.parametrize(
    ("name", "arguments", "needed"),
    [
        ("pay", {"euros": 1}, 3),
        ("transfer", {"euros": 1}, 1),
        ("drop", {"table": "x"}, 1),
        ("pay", {"euros": "x"}, None),
        ("recall", {"seq": 1}, None),
    ],
)
async def test_the_policy_asks_for_approvals_by_patterns(
    tmp_path: Path, name: str, arguments: dict[str, Any], needed: int | None
) -> None:
    rules = {**RULES, "approvals_needed": {**RULES["approvals_needed"], "re*": 2}}
    wanted = await open_bench(tmp_path, name, rules, **arguments).ask()
    assert wanted.options.needs_approval == (needed is not None)
    assert needed is None or wanted.options.approvals_needed == needed


async def test_a_call_that_the_policy_asks_for_does_not_run_unapproved(tmp_path: Path) -> None:
    bench = open_bench(tmp_path, "transfer", euros=0)
    wanted = await bench.ask()
    assert not wanted.options.needs_approval
    bench.policy = RULES
    outcome, text = await bench.run(wanted)
    assert (outcome, "needs a person's approval" in text) == ("failed", True)


async def test_what_a_tool_raises_is_a_result_if_its_effect_must_not_happen_twice(
    tmp_path: Path,
) -> None:
    bench = open_bench(tmp_path, "transfer", euros=0)
    wanted = await bench.ask()
    assert (wanted.options.once, wanted.preview) == (True, '{"euros": 0}')
    expected = ("failed", "error: tool 'transfer' failed: ValueError: no such account")
    assert await bench.run(wanted, outcome_id="2-1-ab-1") == expected


@pytest.mark.guarantee(116)
@pytest.mark.parametrize("size_bytes", [0, limits.TEXT_BYTES_MAX + 1])
async def test_a_lost_result_is_no_reason_to_call_again(tmp_path: Path, size_bytes: int) -> None:
    """The tool has ended, so its effect is there, although what it returned cannot be stored."""

    @tool(effects="once")
    def wire() -> object:
        """Wire."""
        return bytes(size_bytes) if size_bytes else object()

    bench = open_bench(tmp_path, "wire")
    agent = Agent(name="ops", model=call_then_answer(call(0, "wire")), tools=[wire])
    bench.activities = AgentActivities(open_packs(tmp_path.as_uri()), [agent])
    outcome, text = await bench.run(await bench.ask(), outcome_id="2-1-ab-1")
    assert outcome == "failed"
    assert text.startswith("error: the call has run and took effect; only its result is lost")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"effects": "twice"}, "effects must be 'once' or 'repeatable'"),
        ({"effects": "once", "attempts_max": 2}, "effects='once' allows one attempt"),
        ({"approvals_needed": 2}, "approvals_needed has no effect without needs_approval"),
        ({"always": False}, "always has no effect without needs_approval"),
        ({"needs_approval": True, "always": 1}, "always must be True or False"),
        ({"needs_approval": True, "approvals_needed": "all"}, "'all' needs approvers"),
        ({"needs_approval": True, "approvals_needed": 0}, "an integer of at least 1"),
        ({"needs_approval": True, "approvals_needed": True}, "an integer of at least 1"),
        ({"needs_approval": True, "approvals_needed": 9}, "at most 8 can be"),
        (
            {"needs_approval": True, "approvals_needed": 3, "approvers": ["a", "b", "a"]},
            "at most 2 can be: there are no more approvers",
        ),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], reason: str) -> None:
    def act() -> str:
        """Act."""
        return ""

    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        tool(**options)(act)


@pytest.mark.parametrize(
    ("options", "attempts_max", "once"),
    [
        ({}, None, False),
        ({"attempts_max": 1}, 1, True),
        ({"attempts_max": 2}, 2, False),
        ({"effects": "once"}, 1, True),
        ({"effects": "once", "approvers": ["ann"], "deadline_seconds": 5}, 1, True),
        ({"attempts_max": 1, "effects": "repeatable"}, 1, False),
    ],
)
def test_a_tool_says_whether_its_effect_may_happen_twice(
    options: dict[str, Any], attempts_max: int | None, once: bool
) -> None:
    @tool(**options)
    def act() -> str:
        """Act."""
        return ""

    assert (act.call_options.attempts_max, act.call_options.once) == (attempts_max, once)


@pytest.mark.parametrize(
    "rules", [{"": 1}, {"x" * 65: 1}, {"a": 0}, {"a": 9}, {f"a{n}": 1 for n in range(17)}, ["a"]]
)
def test_the_policy_refuses_rules_without_bounds(rules: Any) -> None:
    with pytest.raises(ValueError, match="approvals_needed"):
        Policy().with_changes({"approvals_needed": rules})
