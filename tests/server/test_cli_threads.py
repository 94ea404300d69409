"""The commands for threads, against a real server: what people see, and what programs get."""

import asyncio
import contextlib
import dataclasses
import getpass
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from everlong import Policy
from everlong.cli import app
from everlong.client.status import list_pending as read_pending
from everlong.client.status import load_arguments, read_status
from everlong.client.wait import wait_for_status
from everlong.embedded import TemporalServer
from everlong.errors import (
    ConfigError,
    DecisionRefused,
    EntryNotFound,
    EverlongError,
    ThreadPaused,
)
from everlong.models import Entry, SegmentRef
from everlong.storage import open_store
from everlong.storage.journal import Journal
from everlong.storage.pack_store import PackStore
from tests.support.forked_command import run_command
from tests.support.governed_agent import build_governed_agent
from tests.support.threads import Threads, open_threads


class Cli:
    """Runs commands as a user of one server and store would."""

    def __init__(self, threads: Threads, env: dict[str, str]) -> None:
        self.threads = threads
        self.env = env

    async def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        result = await self._invoke(*arguments, stdin=stdin)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))

    async def fails(self, error: type[EverlongError], *arguments: str) -> str:
        result = await self._invoke(*arguments)
        assert isinstance(result.exception, error), result.output
        return str(result.exception)

    async def _invoke(self, *arguments: str, stdin: bytes = b"") -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke, app, list(arguments), input=stdin, env=self.env
        )


@contextlib.asynccontextmanager
async def open_cli(server: TemporalServer, tmp_path: Path) -> AsyncIterator[Cli]:
    url = (tmp_path / "blobs").as_uri()
    async with open_threads(server.address, open_store(url), build_governed_agent()) as threads:
        env = {
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": url,
            "EVERLONG_TASK_QUEUE": threads.task_queue,
        }
        async with threads.worker():
            yield Cli(threads, env)


async def pending_id(cli: Cli, thread_id: str) -> str:
    await wait_for_status(
        cli.threads.client, thread_id, lambda status: status.pending > 0, seconds_max=90
    )
    [approval] = await cli.json("approvals", thread_id)
    assert isinstance(approval["id"], str)
    return approval["id"]


async def test_the_cli_sends_messages_and_shows_the_thread(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        assert await cli("send", thread_id, "hello", "--agent", "ops") == "you said hello\n"
        long_text = b"a log " + b"0123456789\n" * 20_000 + b"\xff"
        queued = await cli("send", thread_id, "-", "--no-wait", stdin=long_text)
        assert queued == f"message 2 is queued on thread {thread_id}\n"
        await cli.threads.wait_for_answers(thread_id, 2)
        shown = await cli("show", thread_id)
        for text in ("waiting", "2 of 2 answered", "2 model calls", "tokens", "0.02 USD", "KiB"):
            assert text in shown
        fields = await cli.json("show", thread_id)
        assert fields["counters"]["tokens"] == 20
        assert fields["size"]["blobs"] > 0
        assert fields["approvals"] == []
        entries = await cli.json("journal", thread_id)
        assert [entry["seq"] for entry in entries] == [1, 2, 3, 4]
        whole = entries[2]["message"]["text"]
        assert whole == long_text.decode(errors="replace")
        listed = await cli("journal", thread_id, "--from", "2", "--to", "3")
        assert len(listed.splitlines()) == 2
        assert "you said hello" in listed
        assert "KiB" in listed.splitlines()[1]
        for wanted in (["--from", "99"], ["--from", "99", "--json"], ["--from", "3", "--to", "2"]):
            message = await cli.fails(EntryNotFound, "journal", thread_id, *wanted)
            assert f"has no entries from {wanted[1]}" in message


async def test_the_cli_prints_a_journal_while_reading_it(
    server: TemporalServer, tmp_path: Path, thread_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everlong.cli.thread._WHOLE_ENTRIES", 2)
    monkeypatch.setattr("everlong.cli.thread.SCAN_ENTRIES", 2)
    async with open_cli(server, tmp_path) as cli:
        for text in ("one", "two", "three"):
            await cli("send", thread_id, text, "--agent", "ops")
        read = Journal.read
        ranges: list[tuple[int, int | None]] = []

        async def noted(
            journal: Journal, head: SegmentRef, first_seq: int = 1, last_seq: int | None = None
        ) -> list[Entry]:
            ranges.append((first_seq, last_seq))
            return await read(journal, head, first_seq, last_seq)

        monkeypatch.setattr(Journal, "read", noted)
        entries = await cli.json("journal", thread_id, "--from", "2")
        assert [entry["seq"] for entry in entries] == [2, 3, 4, 5, 6]
        assert ranges == [(2, 3), (4, 5), (6, 6)]
        assert len((await cli("journal", thread_id, "--to", "5")).splitlines()) == 5
        assert ranges[3:] == [(1, 2), (3, 4), (5, 5)]


async def test_the_cli_shows_pending_arguments_whole(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    name = "api-" + "é\x1b" * 6000 + "-end"
    whole = json.dumps({"service": name})
    async with open_cli(server, tmp_path) as cli:
        wish = f"restart {name}".encode()
        await cli("send", thread_id, "-", "--agent", "ops", "--no-wait", stdin=wish)
        found = await pending_id(cli, thread_id)
        [approval] = await cli.json("approvals", thread_id)
        assert approval["arguments"] == whole
        first, second = (await cli("approvals", thread_id)).splitlines()
        assert first.startswith(f"{found}  restart ")
        assert second.startswith(f"    {whole[:4096]}… and {len(whole) - 4096} more bytes")
        packs = PackStore(cli.threads.store)
        [pending] = await read_pending(cli.threads.client, thread_id)
        for other in (f"{found[:-4]}0000", "1-1-0000", "2-9-0000", "99-1-0000", "2-1", "x"):
            gone = dataclasses.replace(pending, id=other)
            with pytest.raises(EntryNotFound, match="everlong approvals"):
                await load_arguments(cli.threads.client, packs, thread_id, gone)


async def test_the_cli_approves_and_denies(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "restart api", "--agent", "ops", "--no-wait")
        name = await pending_id(cli, thread_id)
        listed = await cli("approvals", thread_id)
        assert listed.startswith(f"{name}  restart ")
        assert "for ann or bob" in listed
        assert name in await cli("show", thread_id)
        message = await cli.fails(DecisionRefused, "approve", thread_id, name, "--by", "eve")
        assert "ann or bob may" in message
        # Without --by, the system user decides, who is not an approver either.
        message = await cli.fails(DecisionRefused, "deny", thread_id, name)
        assert getpass.getuser() in message
        approved = await cli("approve", thread_id, name, "--by", "ann", "--reason", "drained")
        assert approved == f"{name} on thread {thread_id} is approved, by ann\n"
        await cli.threads.wait_for_answers(thread_id, 1)
        assert await cli("approvals", thread_id) == "no tool call waits for approval\n"
        assert f"{name} approved by ann: drained" in await cli("journal", thread_id)
        await cli("send", thread_id, "restart db", "--no-wait")
        await pending_id(cli, thread_id)
        await cli("deny", thread_id, "--by", "bob", "--reason", "not now")
        await cli.threads.wait_for_answers(thread_id, 2)
        assert "denied by bob: not now" in await cli("journal", thread_id)


async def test_the_cli_lists_and_revokes_grants(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "restart api", "--agent", "ops", "--no-wait")
        await pending_id(cli, thread_id)
        always = ("--always", "arguments", "--for", "8h", "--by", "ann")
        approved = await cli("approve", thread_id, *always, stdin=b"y\n")
        assert f"everlong grants {thread_id}" in approved
        await cli.threads.wait_for_answers(thread_id, 1)
        [grant] = await cli.json("grants", thread_id)
        assert grant["tool"] == "restart"
        assert grant["id"] in await cli("grants", thread_id)
        assert await cli("grants") == "there are no grants\n", "none is for all threads"
        assert await cli("send", thread_id, "restart api") == "api is up\n"
        await cli("revoke-grant", grant["id"], thread_id, "--by", "ann")
        assert await cli("grants", thread_id) == "there are no grants\n"
        await cli.fails(ConfigError, "approve", thread_id, "--for", "8h")


async def test_the_cli_lists_and_resolves_unknown_outcomes(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "pay ben", "--agent", "ops", "--no-wait")
        await wait_for_status(
            cli.threads.client, thread_id, lambda status: status.reason == "outcome", seconds_max=90
        )
        [unknown] = await cli.json("outcomes", thread_id)
        assert (unknown["tool"], unknown["cause"]) == ("pay", "unclear")
        assert unknown["idempotency_key"] in await cli("outcomes", thread_id)
        await cli.fails(ConfigError, "resolve", thread_id, "--retry", "--not-done")
        resolved = await cli("resolve", thread_id, "--done", "transfer 17", "--by", "ann")
        assert resolved == f"{unknown['id']} on thread {thread_id} is done, by ann\n"
        await cli.threads.wait_for_answers(thread_id, 1)
        assert "transfer 17" in await cli("journal", thread_id)
        message = await cli.fails(DecisionRefused, "resolve", thread_id, "--retry")
        assert "is known" in message


async def test_the_cli_divides_stored_bytes_by_cause(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "remember " + "long " * 2000, "--agent", "ops")
        found = await cli.json("bytes", thread_id)
        files = [each for each in (tmp_path / "blobs").rglob("*.pack") if each.is_file()]
        assert found["stored_bytes"] == sum(each.stat().st_size for each in files)
        assert found["stored_bytes"] == sum(each["stored_bytes"] for each in found["causes"])
        shown = await cli("bytes", thread_id, "--since", "1h")
        assert "tool results: remember" in shown
        assert "messages" in await cli("bytes", thread_id, "--since", "2020-01-01")
        assert thread_id in await cli("bytes", "--agent", "ops", "--limit", "200")
        both = await cli.json("bytes", "--limit", "200")
        assert thread_id in [each["thread_id"] for each in both["threads"]]
        await cli.fails(ConfigError, "bytes", thread_id, "--since", "tomorrow")


async def test_the_cli_limits_pauses_compacts_and_stops(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "hello", "--agent", "ops")
        assert "  steps_max" in await cli("limits", thread_id, "--all")
        changed = await cli(
            "limits", thread_id, "steps_max=500", "cost_usd_max=none", "--by", "ann"
        )
        starred = [line.split() for line in changed.splitlines() if line.startswith("*")]
        assert starred == [
            ["*", "steps_max", "500", "default", "100,000"],
            ["*", "cost_usd_max", "none", "default", "$1,000"],
        ]
        assert (await cli.json("limits", thread_id))["steps_max"] == 500
        assert "no more steps" in await cli("pause", thread_id, "--by", "ann", "--reason", "wait")
        message = await cli.fails(ThreadPaused, "send", thread_id, "again")
        assert "by ann: wait" in message
        assert "by ann: wait" in await cli("show", thread_id)
        assert "continues" in await cli("unpause", thread_id)
        await cli.threads.wait_for_answers(thread_id, 2)
        assert "Nothing to evaluate" in await cli("compact", thread_id, "--evaluate")
        assert "will compact" in await cli("compact", thread_id)
        assert "will stop" in await cli("stop", thread_id, "--reason", "done")
        await cli.threads.client.get_workflow_handle(thread_id).result()
        assert (await cli.json("show", thread_id))["status"] == "done"
        listed = await cli("journal", thread_id)
        assert "configure cost_usd_max=none steps_max=500 by ann" in listed


async def test_the_cli_shows_past_states_and_forks(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli("send", thread_id, "hello", "--agent", "ops")
        await cli("send", thread_id, "remember the api is slow")
        last = len(await cli.json("journal", thread_id))
        view = await cli("show", thread_id, "--at", str(last))
        assert "2 messages, 3 model calls, 1 tool call" in view
        assert "fact      note: the api is slow" in view
        assert [
            each["text"] for each in (await cli.json("show", thread_id, "--at", "1"))["context"]
        ] == ["hello"]
        diff = await cli("diff", thread_id, "2", str(last))
        assert "+ fact    note: the api is slow" in diff
        assert "+ user       remember the api is slow" in diff
        assert (await cli.json("diff", thread_id, "2", str(last)))["totals"]["steps"] == 2
        assert "and no 99" in await cli.fails(EntryNotFound, "diff", thread_id, "2", "99")
        forked = f"{thread_id}-fork"
        assert f"send {forked}" in await cli("fork", thread_id, "2", forked, "--by", "ann")
        assert await cli("send", forked, "go on") == "you said go on\n"
        listed = await cli("journal", forked)
        assert f"of thread {thread_id} at 2 by ann" in listed
        assert "api is slow" not in listed
        # The reply to the first message: the fork begins before it, and answers the changed one.
        assert await cli("rerun", thread_id, "2", "hi", "--by", "ann") == "you said hi\n"
        again = f"{thread_id}-rerun-2"
        shown = await cli("show", again)
        assert f"{thread_id}, before its first message" in " ".join(shown.split())
        async with asyncio.timeout(30):  # The server lists a start after a second or so.
            while again not in await cli("show", thread_id):
                await asyncio.sleep(0.2)
        links = (await cli.json("show", thread_id))["links"]
        assert {each["thread_id"]: each["seq"] for each in links["forks"]} == {forked: 2, again: 0}


def everlong(
    server: TemporalServer, store: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return run_command(
        *arguments,
        cwd=store.parent,
        env={
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "TEMPORAL_ADDRESS": server.address,
            "EVERLONG_STORE": store.as_uri(),
        },
    )


def test_an_unknown_thread_gets_a_message_and_an_exit_code(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    result = everlong(server, tmp_path, "fork", thread_id, "1", "new")
    assert result.returncode == 6, result.stderr
    assert result.stderr.startswith(f"error: there is no running thread '{thread_id}'")
    assert "Traceback" not in result.stderr


async def test_runs_are_paged_from_the_newest_to_the_first(
    server: TemporalServer, tmp_path: Path, thread_id: str
) -> None:
    async with open_cli(server, tmp_path) as cli:
        await cli.threads.start(thread_id, Policy(run_events_max=50))
        while (await read_status(cli.threads.client, thread_id)).counters.runs < 3:
            number = await cli.threads.send(thread_id, "hello")
            await cli.threads.wait_for_answers(thread_id, number)
        every = await cli.json("runs", thread_id)
        seen: list[str] = []
        page = await cli.json("runs", thread_id, "--limit", "1")
        while page["next_run_id"] and len(seen) < 10:
            seen += [each["run_id"] for each in page["runs"]]
            page = await cli.json(
                "runs", thread_id, "--limit", "1", "--cursor", page["next_run_id"]
            )
        seen += [each["run_id"] for each in page["runs"]]
    assert len(seen) >= 3
    assert seen == [each["run_id"] for each in every["runs"]]
