"""The public testing kit: what a user's test of an agent can do with it."""

import asyncio
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.client import Client

from everlong import Agent, Policy, Reply, tool
from everlong.embedded import TemporalServer
from everlong.errors import ConfigError, DecisionRefused, NotAnswered, RecordingMismatch
from everlong.models import Kind, Message
from everlong.testing import (
    AskedCall,
    EverlongEnv,
    FakeApprover,
    RecordedModel,
    RecordedSpans,
    RunAgent,
    call,
)
from everlong.testing.scripted_model import Script
from everlong.testing.time_skip import skip_time

pytest_plugins = ["pytester"]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-agent.md"
NESTED = ("-p", "no:schemathesis", "-o", "asyncio_default_fixture_loop_scope=function")

DAY = 24 * 3600.0


@tool
def read_log(service: str) -> str:
    """Read the log of a service."""
    return f"{service}: out of memory\n" * 2_000


@tool(
    needs_approval=True,
    approvers=["ann"],
    deadline_seconds=DAY,
    on_deadline="escalate",
    escalate_to=["bob"],
)
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} is up"


OPS = Agent(name="ops", model="openai:gpt-5", instructions="Operate.", tools=[read_log, restart])
LOOK_AND_RESTART = (call(read_log, service="api"), call(restart, service="api"), "done", "bye")


async def test_a_test_sees_steps_approvals_spans_and_sizes(run_agent: RunAgent) -> None:
    approver = FakeApprover({"restart": True})
    async with run_agent(OPS, LOOK_AND_RESTART, approver=approver) as thread:
        assert await thread.ask("fix it") == "done"
        steps = await thread.steps()
        assert [[each.tool for each in step.calls] for step in steps] == [
            ["read_log"],
            ["restart"],
            [],
        ]
        log, restarted = await thread.tool_calls()
        assert log.result == read_log("api"), "results are whole"
        assert (restarted.arguments, restarted.result) == ({"service": "api"}, "api is up")
        assert approver.asked == [
            AskedCall(
                approval_id=approver.asked[0].approval_id,
                tool="restart",
                arguments={"service": "api"},
                approvers=("ann",),
                approved=True,
            )
        ]
        sizes = await thread.sizes()
        assert 0 < sizes.stored_bytes < sizes.history_bytes < sizes.context_bytes

        await thread.restart_worker()
        assert await thread.ask("and now?") == "bye"
        [resume] = thread.spans.find("everlong.resume")
        assert resume.attributes is not None
        assert resume.attributes["everlong.resume.cause"] == "new_worker"
        assert len(thread.spans.find("chat")) == 4
        thread.spans.clear()
        assert thread.spans.all() == []


async def test_time_passes_at_once_for_deadlines_and_rests(run_agent: RunAgent) -> None:
    approver = FakeApprover(lambda asked: True if asked.escalated else None)
    async with run_agent(OPS, LOOK_AND_RESTART, approver=approver) as thread:
        number = await thread.send("fix it")
        [waiting] = await thread.wait_for_approvals()
        async with asyncio.timeout(20):
            while not approver.asked:
                await asyncio.sleep(0.01)
        await thread.skip_time(DAY + 1)
        assert await thread.wait(number) == "done", "bob has approved it"
        assert [(each.approved, each.approvers) for each in approver.asked] == [
            (None, ("ann",)),
            (True, ("bob",)),
        ]
        decided = [e.data or {} async for e in thread.journal() if e.kind == Kind.DECIDED]
        assert [each["by"] for each in decided] == ["deadline", "bob"]
        assert waiting.deadline_ms is not None

        runs = (await thread.wait_until(lambda progress: not progress.is_busy)).runs
        await thread.skip_time(Policy().idle_seconds + 1)
        rested = await thread.wait_until(lambda progress: progress.runs > runs)
        assert rested.status == "waiting"


async def test_time_does_not_pass_during_work(run_agent: RunAgent) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work until the test, in the same event loop, lets it end."""
        begun.set()
        await done.wait()
        return "worked"

    agent = Agent(name="ops", model="openai:gpt-5", tools=[work], policy=Policy(idle_seconds=5))
    async with run_agent(agent, [call(work), "ok"]) as thread:
        number = await thread.send("go")
        await begun.wait()
        with pytest.raises(NotAnswered, match=r"did not move 3600 s within 0\.3 s\. Work in"):
            await thread.skip_time(3600, seconds_max=0.3)
        done.set()
        assert await thread.wait(number) == "ok"


async def test_a_server_that_does_not_skip_time_is_named(
    server: TemporalServer,
) -> None:
    client = await Client.connect(server.address)
    with pytest.raises(ConfigError, match=r"--dynamic-config-value frontend\.WorkflowTime"):
        await skip_time(client, "", 5)


async def test_an_error_in_the_tests_own_parts_ends_the_test_at_once(
    run_agent: RunAgent, tmp_path: Path
) -> None:
    def script(turn: Sequence[Message]) -> Reply:
        raise AssertionError("the agent asked too much")

    async with run_agent(OPS, script) as thread:
        with pytest.raises(AssertionError, match="asked too much"):
            await thread.ask("go")
        other = thread.other("another")
        with pytest.raises(AssertionError, match="asked too much"):
            await other.ask("go")

    path = tmp_path / "ops.json"
    recording = RecordedModel(path, model=Agent(name="x", model=_Real()).model, record=True)
    async with run_agent(OPS, recording) as thread:
        assert await thread.ask("go") == "recorded"
    async with run_agent(OPS, RecordedModel(path)) as thread:
        assert await thread.ask("go") == "recorded"
        with pytest.raises(RecordingMismatch, match="the number of messages is 3, recorded were 1"):
            await thread.ask("and then?")

    with pytest.raises(DecisionRefused, match="'eve' may not decide"):
        async with run_agent(
            OPS, [call(restart, service="api")], approver=FakeApprover(by="eve")
        ) as thread:
            await thread.ask("go")


class _Real:
    async def reply(self, instructions: object, messages: object, tools: object) -> Reply:
        return Reply(text="recorded")


async def test_a_test_never_calls_a_provider_by_accident(run_agent: RunAgent) -> None:
    lead = Agent(name="lead", model="openai:gpt-5", tools=[OPS], instructions="Lead.")
    for script, named in [(None, "'lead' would call"), ({"lead": ["ok"]}, "'ops' would call")]:
        with pytest.raises(ConfigError, match=named):
            async with run_agent(lead, script):
                pass
    with pytest.raises(ConfigError, match="there is no agent 'opps'"):
        async with run_agent(OPS, {"ops": ["ok"], "opps": ["ok"]}):
            pass


async def test_sub_agents_have_scripts_by_name(run_agent: RunAgent) -> None:
    helper = Agent(name="helper", model="openai:gpt-5", instructions="Help.")
    lead = Agent(name="lead", model="openai:gpt-5", tools=[helper])
    lead_script: Script = [call("helper", request="why?"), "because"]
    scripts = {"lead": lead_script, "helper": ["out of memory"]}
    async with run_agent(lead, scripts) as thread:
        assert await thread.ask("why?") == "because"
        [asked] = await thread.tool_calls()
        assert (asked.tool, asked.result) == ("helper", "out of memory")


async def test_a_client_of_ones_own_has_the_store_and_records_spans(
    everlong_env: EverlongEnv,
) -> None:
    spans = RecordedSpans()
    client = await everlong_env.connect(spans=spans, inline_bytes_max=1024)
    [payload] = await client.data_converter.encode(["x" * 100_000])
    assert len(payload.data) < 1000
    assert await client.data_converter.decode([payload]) == ["x" * 100_000]


SESSION = """
    import asyncio
    import pytest
    from pathlib import Path
    from everlong import Agent

    ops = Agent(name="ops", model="openai:gpt-5")

    @pytest.mark.asyncio
    async def test_in_strict_mode(run_agent):
        async with run_agent(ops, ["hello"]) as thread:
            assert await thread.ask("hi") == "hello"

    @pytest.mark.anyio
    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_with_anyio(run_agent):
        async with run_agent(ops, ["hello"]) as thread:
            assert await thread.ask("hi") == "hello"

    def test_without_a_plugin(run_agent, everlong_env):
        async def main():
            async with run_agent(ops, ["hello"]) as thread:
                return await thread.ask("hi")
        assert asyncio.run(main()) == "hello"
        Path("address").write_text(everlong_env.address)

    @pytest.mark.asyncio
    async def test_interrupted(run_agent):
        async with run_agent(ops, ["hello"]) as thread:
            await thread.ask("hi")
            raise KeyboardInterrupt
"""


def test_an_interrupted_session_leaves_no_server(pytester: pytest.Pytester) -> None:
    """With a server of its own, in a nested session."""
    pytester.makeconftest('pytest_plugins = ["everlong.testing.pytest_plugin"]')
    pytester.makepyfile(SESSION)
    found = pytester.runpytest_inprocess(*NESTED, no_reraise_ctrlc=True)
    found.stdout.fnmatch_lines(["*KeyboardInterrupt*", "*3 passed*"])
    address = (pytester.path / "address").read_text()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(address.split(":")):  # type: ignore[arg-type] # the port may be text
        pass


ADDRESS = """
@pytest.fixture(scope="session")
def everlong_address():
    return {address!r}
"""
RECORD = """
import pytest
from watch import ops
from everlong.testing import RecordedModel, ScriptedModel, call

@pytest.mark.asyncio
async def test_record(run_agent):
    provider = ScriptedModel([call("read_log", service="api"), "It is out of memory."])
    model = RecordedModel("recordings/outage.json", model=provider, record=True)
    async with run_agent(ops, model) as thread:
        await thread.ask("Why is api slow?")
"""


def read_files() -> dict[str, str]:
    """Return the files of the page by name: the first comment of each. The first of a name counts."""
    found: dict[str, str] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        found.setdefault(block.splitlines()[0].removeprefix("# "), block)
    return found


def test_the_files_of_the_page_pass(pytester: pytest.Pytester, server: TemporalServer) -> None:
    files = read_files()
    assert list(files) == [
        *("watch.py", "conftest.py", "test_watch.py", "test_recorded.py", "test_loop.py")
    ]
    files["conftest.py"] += f"import pytest\n{ADDRESS.format(address=server.address)}"
    for name, text in files.items():
        (pytester.path / name).write_text(text)

    without = pytester.runpytest_inprocess(*NESTED, "test_recorded.py")
    without.stdout.fnmatch_lines("*RecordingMissing: there is no recording *outage.json*")
    (pytester.path / "test_record.py").write_text(RECORD)
    whole = pytester.runpytest_inprocess(*NESTED)
    whole.assert_outcomes(passed=8)

    # After a change of the tool, the error is the one that the page shows.
    changed = files["watch.py"].replace("out of memory", "no memory")
    (pytester.path / "watch.py").write_text(changed)
    after = pytester.runpytest_inprocess(*NESTED, "test_recorded.py", "--tb=short")
    [shown] = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), flags=re.DOTALL)
    assert mask(shown) in mask(after.stdout.str())


def mask(text: str) -> str:
    """Return a text on one line, without the digests in it."""
    return re.sub(r"[0-9a-f]{16}", "DIGEST", " ".join(text.replace("E  ", "").split()))
