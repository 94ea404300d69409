"""The banner of `everlong worker` and `everlong serve`: what is on, and no secret."""

import base64
import dataclasses

from everlong import Agent, Reply, tool
from everlong.banner import describe_server, describe_worker, format_banner
from everlong.config import Settings, load_settings
from everlong.testing import ScriptedModel

KEY = base64.b64encode(b"k" * 32).decode()
MODEL = ScriptedModel(lambda turn: Reply(text="done"))


@tool
def look(service: str) -> str:
    """Look."""
    return service


@tool(needs_approval=True)
def restart(service: str) -> str:
    """Restart."""
    return service


def make_settings(**variables: str) -> Settings:
    return load_settings({"EVERLONG_STORE": "file:///srv/blobs", **variables})


def worker_banner(*agents: Agent, **variables: str) -> str:
    return format_banner("worker", describe_worker(make_settings(**variables), agents))


def test_a_worker_names_its_server_its_store_and_its_agents() -> None:
    helper = Agent(name="helper", model=MODEL, description="Helps.")
    ops = Agent(name="ops", model="openai:gpt-5", tools=[look, restart, helper])
    lines = worker_banner(ops, TEMPORAL_ADDRESS="temporal:7233", TEMPORAL_NAMESPACE="team")
    assert "  Temporal   temporal:7233, namespace team, task queue everlong\n" in lines
    assert "  store      file:///srv/blobs\n" in lines
    assert (
        "  agents     ops: model openai:gpt-5; tools look, restart (approval), helper (agent)\n"
        "             helper: model ScriptedModel; tools none\n"
    ) in lines
    assert "  keys       none: stored bytes are not sealed\n" in lines
    assert "  telemetry  traces none, metrics none\n" in lines


def test_a_banner_holds_ids_of_keys_and_no_secret() -> None:
    secret = "a-token-of-the-admin"
    settings = make_settings(
        EVERLONG_KEYS=f"2026-11:{KEY},2026-10:{KEY}",
        EVERLONG_TOKEN=secret,
        EVERLONG_STORE="s3://bucket/prefix?profile=secret-profile",
        TEMPORAL_API_KEY="secret-api-key",
    )
    server = describe_server(
        settings, url="http://h:1", access="", temporal_ui="", cors_origins=(), retention=""
    )
    banner = format_banner("x", [*describe_worker(settings, []), *server])
    assert "2026-11 seals; only to read: 2026-10" in banner
    assert "s3://bucket/prefix\n" in banner
    assert ", API key" in banner
    assert "secret" not in banner
    assert KEY not in banner
    assert secret not in banner


def test_long_lists_do_not_hide_the_other_lines() -> None:
    tools = [dataclasses.replace(look, name=f"tool{number}") for number in range(30)]
    many = [Agent(name=f"agent{number}", model=MODEL) for number in range(30)]
    banner = worker_banner(Agent(name="ops", model=MODEL, tools=tools), *many)
    assert "tool11, and 18 more" in banner
    assert "and 11 more" in banner
    assert len(banner.splitlines()) < 30
