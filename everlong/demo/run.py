"""The demo: runs a thread, kills its worker, resumes it, measures, and checks the figures."""

import asyncio
import dataclasses
import json
import shutil
import sys
import termios
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from everlong.client.progress import ThreadProgress
from everlong.client.thread import ThreadHandle
from everlong.config import Settings
from everlong.connection import connect, open_configured_packs
from everlong.console import find_command, out
from everlong.demo.agent import STEPS, agent, build_expected_conversation, runaway
from everlong.demo.report import APPROVER, Report, find_false_claims, make_table
from everlong.embedded import EmbeddedStack
from everlong.errors import CheckFailed, DataDirUnusable, DecisionRefused
from everlong.models import Decision, Kind, ThreadStatus
from everlong.telemetry.spans import RESUME as RESUME_SPAN

QUESTION: Final = "What happened last night?"
_AGENT_PATHS: Final = ("everlong.demo:agent", "everlong.demo:runaway")
# Just before the first continue-as-new, so that the resume replays nearly as much as any ever does.
_KILL_AT_STEP: Final = 28
_TURN_SECONDS_MAX: Final = 120.0
_MARKER: Final = "everlong-demo"
_DECIDED: Final = TypeAdapter(Decision)


async def run_demo(settings: Settings, *, port: int | None, ui_port: int | None) -> None:
    """Run the demo in `settings.data_dir`; raise `CheckFailed` if a claim does not hold."""
    # The resume span is read from the worker's console exporter. Metrics are off: they need ports.
    settings = dataclasses.replace(settings, traces_exporter="console", metrics_exporter="none")
    out.print("Starting the embedded stack: Temporal dev server, file blob store, worker ...")
    async with EmbeddedStack.open(
        settings, _AGENT_PATHS, port=port, ui_port=ui_port, prepare=empty_directory
    ) as stack:
        thread_id = f"demo-{uuid.uuid4().hex[:6]}"
        out.print(
            f"Dashboard:   {stack.admin_url}    open it to watch the threads live\n"
            f"Temporal UI: {stack.server.ui_url}\n"
            f"Thread:      {thread_id}",
            soft_wrap=True,
        )
        report = await _measure(stack, thread_id)
        out.print(make_table(report))
        [*_, decided] = [None, *report.decisions]
        failed = find_false_claims(report, build_expected_conversation(QUESTION, decided))
        if failed:
            raise CheckFailed("the demo's own check failed: " + "; ".join(failed))
        out.print("Checked: every message is there once and in order, and all figures hold.")
        await _print_next_steps(stack, thread_id)


def empty_directory(data_dir: Path) -> None:
    """Empty a locked data directory; raise `DataDirUnusable` if no demo has created it."""
    marker = data_dir / _MARKER
    found = [path for path in data_dir.iterdir() if path.name not in ("lock", _MARKER)]
    if found and not marker.exists():
        raise DataDirUnusable(
            f"{data_dir} contains files that no demo has written. Choose another directory with "
            "--data-dir."
        )
    if found:
        out.print(f"Removing the data of the last demo in {data_dir}.", soft_wrap=True)
    try:
        # The marker is written first, so that an interrupted demo is still recognised as one.
        marker.touch()
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise DataDirUnusable(f"{data_dir} cannot be emptied: {error}") from error


async def _measure(stack: EmbeddedStack, thread_id: str) -> Report:
    settings = stack.settings
    client = await connect(settings)
    packs = open_configured_packs(settings)
    thread = ThreadHandle(client, thread_id, packs=packs, task_queue=settings.task_queue)
    number = await thread.send(QUESTION, agent=agent.name)
    with _make_progress_bar() as progress:
        task = progress.add_task("running", total=STEPS)

        async def until(done: Callable[[ThreadProgress], bool]) -> ThreadProgress:
            return await thread.wait_until(
                done,
                seconds_max=_TURN_SECONDS_MAX,
                on_progress=lambda seen: progress.update(
                    task, completed=min(STEPS, seen.tool_calls)
                ),
            )

        at_kill = await until(lambda seen: seen.tool_calls >= _KILL_AT_STEP)
        killed = stack.worker
        killed.kill()
        killed_at = time.monotonic()
        progress.update(task, description="worker killed (SIGKILL), resuming on another")
        await stack.replace_worker()
        line = await stack.worker.wait_for_output(f'"{RESUME_SPAN}"', _TURN_SECONDS_MAX)
        outage_seconds = time.monotonic() - killed_at
        resume = json.loads(line)
        progress.update(task, description="resumed")
        await until(lambda seen: seen.tool_calls >= STEPS)
        progress.update(task, description="waiting for approval")
        await _decide(thread, stack.admin_url)
        await until(lambda seen: seen.answered >= number)
        counters = (await thread.status()).counters
        progress.update(task, description="a second thread runs away")
        second = ThreadHandle(
            client, f"{thread_id}-runaway", packs=packs, task_queue=settings.task_queue
        )
        stopped = await _run_runaway(second)
    size = await thread.size()
    return Report(
        conversation=await thread.messages(),
        history_bytes=size.history_bytes,
        blob_bytes=size.blob_bytes,
        context_bytes=counters.context_bytes,
        compactions=counters.compactions,
        decisions=await _read_decisions(thread),
        by_person=_has_person(),
        runaway=stopped,
        runs=size.runs,
        steps_at_kill=at_kill.tool_calls,
        killed_returncode=killed.returncode,
        resume_ms=resume["duration_ms"],
        resume_events=resume["everlong.resume.events"],
        outage_seconds=outage_seconds,
    )


async def _decide(thread: ThreadHandle, dashboard_url: str) -> None:
    """Wait for the approval request. The user at the terminal decides, or else the demo approves."""
    await thread.wait_until(
        lambda seen: seen.pending > 0 or seen.answered > 0, seconds_max=_TURN_SECONDS_MAX
    )
    waiting = await thread.approvals()
    if not waiting:  # A user has already decided in the dashboard.
        return
    [approval] = waiting
    asks = f"The agent asks to run {approval.tool}({approval.arguments})"
    if _has_person():
        prompt = (
            f"{asks}. Decide in the dashboard:\n  {dashboard_url}/approvals\n"
            "or press Enter to approve it here."
        )
        if await _wait_for_decision(thread, prompt):
            return
    else:
        out.print(f"{asks}: approved.", soft_wrap=True)
    try:
        await thread.decide(approval.id, approve=True, by=APPROVER, reason="the logs say so")
    except DecisionRefused:
        if await thread.approvals():
            raise
        # A user has decided in the meantime.


def _has_person() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


async def _wait_for_decision(thread: ThreadHandle, prompt: str) -> bool:
    """Wait for a decision or for Enter; return whether a decision came first."""
    entered = asyncio.ensure_future(_wait_for_enter(prompt))
    decided = asyncio.ensure_future(thread.wait_until(lambda seen: seen.pending == 0))
    try:
        await asyncio.wait([entered, decided], return_when=asyncio.FIRST_COMPLETED)
        return decided.done() and decided.result().pending == 0
    finally:
        entered.cancel()
        decided.cancel()


async def _wait_for_enter(prompt: str) -> None:
    """Prompt for Enter and wait for it. Input from before the prompt is discarded."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    out.print(prompt, soft_wrap=True)
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
        sys.stdin.readline()
    finally:
        loop.remove_reader(sys.stdin)


async def _read_decisions(thread: ThreadHandle) -> list[Decision]:
    return [
        _DECIDED.validate_python(entry.data)
        async for entry in thread.journal()
        if entry.kind == Kind.DECIDED
    ]


async def _run_runaway(thread: ThreadHandle) -> ThreadStatus:
    """Run the agent that never ends; return its final status."""
    await thread.send(QUESTION, agent=runaway.name)
    handle = thread.client.get_workflow_handle(thread.id, result_type=ThreadStatus)
    async with asyncio.timeout(_TURN_SECONDS_MAX):
        status: ThreadStatus = await handle.result()
    return status


def _make_progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=out,
    )


async def _print_next_steps(stack: EmbeddedStack, thread_id: str) -> None:
    data_dir = stack.settings.data_dir
    workflow_url = f"{stack.server.ui_url}/namespaces/default/workflows/{thread_id}"
    if _has_person():
        await _wait_for_enter(
            "\nThe stack is still running. Inspect, compact or archive the thread in the dashboard:\n"
            f"  {stack.admin_url}\n"
            f"or see its history in the Temporal UI:\n  {workflow_url}\n"
            "Press Enter to stop the stack."
        )
    out.print(
        "\nTo continue:\n"
        f"  {find_command()} dev --data-dir {data_dir}    starts this stack again, with the thread\n"
        f"  {workflow_url}    shows its history\n"
        "In a second terminal:\n"
        f"  export EVERLONG_DATA_DIR={data_dir}\n"
        f"  {find_command()} show {thread_id}    prints the thread's status and sizes\n"
        f"  {find_command()} send {thread_id} 'And the night before?'    continues the conversation",
        soft_wrap=True,
    )
