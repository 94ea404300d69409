"""WorkerOptions of workers: settings, options, and the defaults of a worker that runs only agents."""

import dataclasses
import inspect
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    PollerBehaviorSimpleMaximum,
    Worker,
    WorkerConfig,
    WorkerDeploymentConfig,
    WorkerTuner,
)
from typer.testing import CliRunner

from everlong import Agent, EverlongPlugin, Reply, connection, limits, worker_options
from everlong import worker as worker_module
from everlong.cli import app
from everlong.config import load_settings
from everlong.errors import ConfigError
from everlong.testing import ScriptedModel
from everlong.worker_options import WorkerOptions
from everlong.workflows import AgentWorkflow

AGENT = Agent(name="ops", model=ScriptedModel(lambda turn: Reply(text="hi")))
STICKY = "sticky_queue_schedule_to_start_timeout"
SDK_STICKY = inspect.signature(Worker.__init__).parameters[STICKY].default
OURS = timedelta(seconds=limits.STICKY_SECONDS)


@workflow.defn
class Theirs:
    @workflow.run
    async def run(self) -> None:
        pass


class ConfiguredWorker(Exception):
    """A worker has been configured; it needs a server only after that."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__()
        self.config: dict[str, Any] = dict(config)


class Last(SimplePlugin):
    """Ends the making of a worker once the plugins before it have configured it."""

    def __init__(self) -> None:
        super().__init__("last")

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        raise ConfiguredWorker(config)


async def configure(plugin: EverlongPlugin, **options: Any) -> dict[str, Any]:
    client = await Client.connect("127.0.0.1:1", plugins=[plugin], lazy=True)
    with pytest.raises(ConfiguredWorker) as found:
        Worker(client, task_queue="q", plugins=[Last()], **options)
    return found.value.config


async def test_a_worker_of_agents_alone_has_the_short_sticky_timeout() -> None:
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    assert (await configure(plugin))[STICKY] == OURS
    assert SDK_STICKY > OURS
    # Ours, registered by hand.
    assert (await configure(plugin, workflows=[AgentWorkflow]))[STICKY] == OURS
    version = WorkerDeploymentVersion(deployment_name="ops", build_id="1")
    versioned = WorkerDeploymentConfig(version=version, use_worker_versioning=True)
    assert (await configure(plugin, deployment_config=versioned))[STICKY] == OURS


async def test_a_worker_of_agents_alone_polls_mostly_for_threads_in_memory() -> None:
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    config = await configure(plugin)
    polls = config["workflow_task_poller_behavior"].maximum
    assert polls == limits.WORKFLOW_POLLERS
    assert int(polls * config["nonsticky_to_sticky_poll_ratio"]) == 1
    assert config["workflow_task_executor"] is not None
    theirs = await configure(plugin, workflows=[Theirs])
    assert theirs["workflow_task_poller_behavior"] == PollerBehaviorSimpleMaximum(5)
    assert theirs["workflow_task_executor"] is None


async def test_a_worker_with_workflows_of_a_team_keeps_the_sdks_sticky_timeout() -> None:
    agents = EverlongPlugin(store="memory:", agents=[AGENT])
    config = await configure(agents, workflows=[Theirs])
    assert config[STICKY] == SDK_STICKY
    assert AgentWorkflow in config["workflows"]
    alone = EverlongPlugin(store="memory:")
    assert (await configure(alone, workflows=[Theirs]))[STICKY] == SDK_STICKY


@pytest.mark.parametrize("workflows", [[], [Theirs]])
async def test_an_explicit_sticky_timeout_wins(workflows: list[type]) -> None:
    own = timedelta(seconds=7)
    for option in (None, 2.5):
        plugin = EverlongPlugin(store="memory:", agents=[AGENT], sticky_seconds=option)
        assert (await configure(plugin, workflows=workflows, **{STICKY: own}))[STICKY] == own


@pytest.mark.parametrize("workflows", [[], [Theirs]])
@pytest.mark.parametrize("seconds", [2.5, SDK_STICKY.total_seconds()])
async def test_the_plugins_sticky_timeout_applies_to_any_worker(
    workflows: list[type], seconds: float
) -> None:
    plugin = EverlongPlugin(store="memory:", agents=[AGENT], sticky_seconds=seconds)
    found = await configure(plugin, workflows=workflows)
    assert found[STICKY] == timedelta(seconds=seconds)


async def test_a_tuner_or_explicit_slots_override_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = "max_concurrent_workflow_tasks"
    monkeypatch.setattr(worker_options, "_build_agent_defaults", lambda: {slots: 8})
    plugin = EverlongPlugin(store="memory:", agents=[AGENT])
    assert (await configure(plugin))[slots] == 8
    assert (await configure(plugin, **{slots: 3}))[slots] == 3
    assert (await configure(plugin, workflows=[Theirs]))[slots] is None
    tuner = WorkerTuner.create_fixed(workflow_slots=5)
    assert (await configure(plugin, tuner=tuner))[slots] is None


@pytest.mark.parametrize("seconds", [0, -1, 0.05, 61, float("nan"), float("inf")])
def test_a_sticky_timeout_out_of_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"sticky_seconds is .*; give 0\.1 to 60"):
        EverlongPlugin(store="memory:", sticky_seconds=seconds)


async def test_no_other_argument_of_a_worker_changes() -> None:
    """So that a team that reads the SDK's documentation finds what it says."""
    config = await configure(EverlongPlugin(store="memory:", agents=[AGENT]), workflows=[Theirs])
    defaults = inspect.signature(Worker.__init__).parameters
    for name in worker_options.WorkerOptions(
        workflow_tasks=2, activities=2, cached_threads=2, workflow_pollers=2, activity_pollers=2
    ).to_arguments():
        assert config[name] == defaults[name].default, name


ENVIRONMENT = {
    "EVERLONG_WORKFLOW_TASKS": "7",
    "EVERLONG_ACTIVITIES": "8",
    "EVERLONG_CACHED_THREADS": "9",
    "EVERLONG_WORKFLOW_POLLERS": "3",
    "EVERLONG_ACTIVITY_POLLERS": "4",
    "EVERLONG_STICKY_SECONDS": "2.5",
    "EVERLONG_IDENTITY": "ops-1",
}
SET = WorkerOptions(
    workflow_tasks=7,
    activities=8,
    cached_threads=9,
    workflow_pollers=3,
    activity_pollers=4,
    sticky_seconds=2.5,
    identity="ops-1",
)


def test_every_setting_has_a_variable() -> None:
    assert load_settings(ENVIRONMENT).worker == SET
    assert load_settings({}).worker == WorkerOptions()
    assert load_settings(dict.fromkeys(ENVIRONMENT, "")).worker == WorkerOptions()
    assert len(ENVIRONMENT) == len(dataclasses.fields(WorkerOptions))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("EVERLONG_WORKFLOW_TASKS", "1", "is 1; give 2 to 1000"),
        ("EVERLONG_WORKFLOW_TASKS", "1001", "is 1001; give 2 to 1000"),
        ("EVERLONG_WORKFLOW_TASKS", "2.5", "is '2.5'; give a whole number, 2 to 1000"),
        ("EVERLONG_ACTIVITIES", "0", "is 0; give 1 to 1000"),
        ("EVERLONG_CACHED_THREADS", "-1", "is -1; give 0 to 100000"),
        ("EVERLONG_WORKFLOW_POLLERS", "1", "is 1; give 2 to 100"),
        ("EVERLONG_ACTIVITY_POLLERS", "many", "is 'many'; give a whole number, 1 to 100"),
        ("EVERLONG_STICKY_SECONDS", "0", "is 0; give 0.1 to 60"),
        ("EVERLONG_STICKY_SECONDS", "nan", "is nan; give 0.1 to 60"),
        ("EVERLONG_STICKY_SECONDS", "1s", "is '1s'; give seconds, 0.1 to 60"),
        ("EVERLONG_IDENTITY", "a\nb", "has 3 characters; give at most 200"),
    ],
)
def test_an_out_of_bounds_value_is_refused_with_its_range(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings({name: value})
    assert str(raised.value).startswith(f"{name} {message}")


OPTIONS = [
    "--workflow-tasks=17",
    "--activities=18",
    "--cached-threads=19",
    "--workflow-pollers=13",
    "--activity-pollers=14",
    "--sticky-seconds=10",
    "--identity=ops-2",
]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            [],
            {
                "max_concurrent_workflow_tasks": 7,
                "max_concurrent_activities": 8,
                "max_cached_workflows": 9,
                "workflow_task_poller_behavior": PollerBehaviorSimpleMaximum(3),
                "activity_task_poller_behavior": PollerBehaviorSimpleMaximum(4),
                STICKY: timedelta(seconds=2.5),
                "identity": "ops-1",
            },
        ),
        (
            OPTIONS,
            {
                "max_concurrent_workflow_tasks": 17,
                "max_concurrent_activities": 18,
                "max_cached_workflows": 19,
                "workflow_task_poller_behavior": PollerBehaviorSimpleMaximum(13),
                "activity_task_poller_behavior": PollerBehaviorSimpleMaximum(14),
                # The SDK's default, asked for: no other default takes its place.
                STICKY: timedelta(seconds=10),
                "identity": "ops-2",
            },
        ),
    ],
    ids=["variables", "options"],
)
def test_variables_and_options_reach_the_worker(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    expected: dict[str, object],
) -> None:
    async def connect_lazily(*args: Any, **kwargs: Any) -> Client:
        return await Client.connect(*args, **kwargs, lazy=True)

    def make_worker(client: Client, **kwargs: Any) -> Worker:
        return Worker(client, plugins=[Last()], **kwargs)

    monkeypatch.setattr(connection, "Client", type("Lazy", (), {"connect": connect_lazily}))
    monkeypatch.setattr(worker_module, "Worker", make_worker)
    environment = {
        **ENVIRONMENT,
        "EVERLONG_STORE": tmp_path.as_uri(),
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }
    result = CliRunner().invoke(app, ["worker", "everlong.demo:agent", *options], env=environment)
    assert isinstance(result.exception, ConfiguredWorker), result.output
    found = result.exception.config
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("option", "messages"),  # Of newer and older versions of Typer.
    [
        ("--workflow-tasks=1", "greater than or equal to 2|2<=x"),
        ("--workflow-tasks=1001", "less than or equal to 1000|x<=1000"),
        ("--activities=0", "greater than or equal to 1|1<=x"),
        ("--cached-threads=-1", "greater than or equal to 0|0<=x"),
        ("--workflow-pollers=1", "greater than or equal to 2|2<=x"),
        ("--activity-pollers=0", "greater than or equal to 1|1<=x"),
        ("--sticky-seconds=0", "greater than or equal to 0.1|0.1<=x"),
        ("--identity=a\tb", "has 3 characters; give at most 200, all printable"),
    ],
)
def test_an_option_out_of_bounds_is_refused(option: str, messages: str) -> None:
    result = CliRunner().invoke(app, ["worker", "everlong.demo:agent", option])
    flat = " ".join(f"{result.output} {result.exception}".replace("│", " ").split())
    assert result.exit_code != 0
    assert option.partition("=")[0] in flat
    assert any(message in flat for message in messages.split("|"))


def test_the_help_of_the_worker_names_each_default() -> None:
    result = CliRunner().invoke(app, ["worker", "--help"], env={"COLUMNS": "200"})
    flat = " ".join(result.output.replace("│", " ").split())
    for option in OPTIONS:
        assert option.partition("=")[0] in flat
    assert flat.count("Default: ") >= len(OPTIONS)
    assert f"Default: {limits.STICKY_SECONDS:g}." in flat
