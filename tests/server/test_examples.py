"""Every example runs, and prints what its README shows. The commands of the READMEs exist."""

import contextlib
import importlib
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from temporalio.client import Client
from temporalio.envconfig import ClientConnectConfig
from temporalio.worker import Worker

from everlong import Agent, EverlongPlugin
from everlong.agents.providers import ProviderModel
from everlong.cli import app
from everlong.config import TASK_QUEUE_DEFAULT
from everlong.embedded import TemporalServer
from everlong.errors import ModelRefused
from everlong.models import Message
from everlong.worker import load_agent
from examples import environment
from examples.local_model import fake_server
from tests.support.otlp_receiver import http_receiver

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/__main__.py"))
# Ids and numbers differ from run to run.
VARIABLE = re.compile(r"(?<=-)[0-9a-f]{4,12}\b|\b[0-9a-f]{32,64}\b|[\d,.]*\d")


@pytest.fixture
def config(server: TemporalServer) -> ClientConnectConfig:
    return ClientConnectConfig(target_host=server.address)


@contextlib.asynccontextmanager
async def run_worker(config: ClientConnectConfig, store: str, agent: Agent) -> AsyncIterator[None]:
    """Run an agent as `everlong dev` does."""
    agent.check()
    client = await Client.connect(**config, plugins=[EverlongPlugin(store=store, agents=[agent])])
    async with Worker(client, task_queue=TASK_QUEUE_DEFAULT):
        yield


def load_main(name: str) -> Any:
    return importlib.import_module(f"examples.{name}.__main__").main


def read_blocks(name: str, language: str) -> list[str]:
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def mask(output: str) -> list[str]:
    return [" ".join(VARIABLE.sub("#", line).split()) for line in output.splitlines()]


def check_output(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Check that the README shows what the example has printed, and return that."""
    printed = capsys.readouterr().out
    [shown] = read_blocks(name, "text")
    assert mask(printed) == mask(shown)
    return printed


@pytest.mark.parametrize("name", ["quickstart", "approvals", "sub_agents"])
async def test_a_program_that_talks_to_an_agent_prints_what_its_readme_shows(
    config: ClientConnectConfig, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with run_worker(config, tmp_path.as_uri(), load_agents(name)[0]):
        await load_main(name)(config, tmp_path.as_uri())
    check_output(name, capsys)


@pytest.mark.parametrize("name", ["keys", "own_store"])
async def test_a_program_with_a_worker_prints_what_its_readme_shows(
    config: ClientConnectConfig, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await load_main(name)(config, tmp_path.as_uri())
    check_output(name, capsys)


async def test_an_application_adopts_the_plugin_and_goes_back_with_runs_in_flight(
    config: ClientConnectConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = 6
    before, both, adopted, leaving, after = (
        await load_main("existing_app")(config, tmp_path.as_uri(), steps)
    ).values()
    # Without the plugin the inputs alone are 20 KB, 40 KB ... 100 KB. With it they are refs, and so are
    # the results.
    assert before > 20_000 * steps * (steps - 1) // 2
    assert max(adopted, leaving) < steps * 1_500
    assert max(adopted, leaving) < both < before / 2
    assert after > before * 0.99
    check_output("existing_app", capsys)


@pytest.mark.guarantee(78)
async def test_a_team_workflow_can_embed_a_thread(
    config: ClientConnectConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await load_main("own_thread")(config, tmp_path.as_uri())
    nights, runs = re.findall(r"\d+", check_output("own_thread", capsys))
    assert int(nights) == 5
    assert int(runs) >= 2


async def test_an_agent_works_with_a_server_that_speaks_only_chat_completions(
    config: ClientConnectConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with fake_server.serve(port=0) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        async with run_worker(config, tmp_path.as_uri(), load_agents("local_model")[0]):
            await load_main("local_model")(config, tmp_path.as_uri())
        other = ProviderModel("openai:qwen3")
        with pytest.raises(ModelRefused) as caught:
            await other.reply("", [Message(role="user", text="hi")], [])
        await other.close()
    check_output("local_model", capsys)
    readme = (EXAMPLES / "local_model" / "README.md").read_text(encoding="utf-8")
    assert str(caught.value) in " ".join(readme.replace("\n  >", "").split())


async def test_spans_and_metrics_of_a_resume_reach_an_otlp_endpoint(
    config: ClientConnectConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with http_receiver() as received:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        await load_main("observability")(config, tmp_path.as_uri())
    printed = check_output("observability", capsys)
    span = received.span("everlong.resume")
    assert f"thread {span.attributes['gen_ai.conversation.id']}" in printed
    assert span.resource["service.name"] == "everlong-example"
    assert "everlong.resume.duration" in received.metric_names()


def load_agents(name: str) -> list[Agent]:
    """Return the agents that the commands of a README run."""
    commands = "".join(read_blocks(name, "bash"))
    return [load_agent(path) for path in re.findall(r"everlong dev (\S+:\S+)", commands)]


def test_the_commands_of_every_readme_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a Group
    violations = []
    for name in FOLDERS:
        lines = [line for block in read_blocks(name, "bash") for line in block.splitlines()]
        words = [shlex.split(line, comments=True) for line in lines]
        if not any(each[-3:] == ["python", "-m", f"examples.{name}"] for each in words):
            violations.append(f"{name}: no command runs it")
        violations += [
            f"{name}: {' '.join(each)}"
            for each in words
            if each[0] == "everlong" and each[1] not in commands
        ]
        load_agents(name)  # Raises if a README names an agent that does not exist.
    assert violations == []
    assert len(FOLDERS) >= 9


def test_an_example_without_a_server_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(SystemExit, match=r"answers at 127\.0\.0\.1:1\. Start one: everlong dev"):
        environment.run(load_main("quickstart"))


def test_the_index_lists_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\((\w+)/README.md\)", text)) == FOLDERS
