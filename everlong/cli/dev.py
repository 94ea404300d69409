"""Commands of the embedded stack: the demo, and the stack for development.

The stack's parts are child processes, so this one imports little.
"""

import asyncio
import contextlib
import dataclasses
import re
import shlex
import signal
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from everlong.cli.help import Commands
from everlong.cli.values import whole_number
from everlong.config import (
    EMBEDDED_NAMESPACE,
    Settings,
    drop_temporal_variables,
    load_settings,
)
from everlong.console import err, find_command, out, sanitise
from everlong.embedded import EmbeddedStack, ManagedProcess
from everlong.embedded.source_watch import SourceWatch, find_roots
from everlong.errors import ConfigError, ProcessFailed

commands = Commands()

Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        parser=whole_number("--port", 1, 65535),
        help="Port for Temporal; 7233, or a free one.",
    ),
]
UiPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        parser=whole_number("--ui-port", 1, 65535),
        help="Port for the Temporal UI; 8233, or a free one.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIRECTORY", help="Directory for all data."),
]
_DEMO_AGENT: Final = "everlong.demo:agent"
_CHANGES_SHOWN_MAX: Final = 3


@commands.command()
def demo(port: Port = None, ui_port: UiPort = None, data_dir: DataDir = None) -> None:
    """Run an agent for 60 steps, kill its worker, resume it, and print the figures.

    Needs no API key and no network. It checks every figure, and exits with 0 only if all hold.

    Examples:
        everlong demo

    """
    # Imported here: the demo is a client, and `everlong dev` is none.
    from everlong.demo.run import run_demo

    settings = _load_embedded_settings(data_dir or Path(".everlong/demo"))
    if _run_until_signal(run_demo(settings, port=port, ui_port=ui_port)):
        raise typer.Exit(130)


@commands.command()
def dev(
    agents: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE:AGENT", help="Agents to run; by default the demo's agent."),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Restart the worker when Python files of the agents or below this directory change.",
        ),
    ] = False,
    port: Port = None,
    ui_port: UiPort = None,
    data_dir: DataDir = None,
) -> None:
    """Start Temporal, a blob store and a worker on this machine, until Ctrl-C.

    All data, blobs included, stays in the data directory, and the next start uses it again.
    EVERLONG_STORE is ignored.

    Examples:
        everlong dev
        everlong dev app:ops --reload
        everlong dev app:ops --data-dir ./data

    """
    settings = _load_embedded_settings(data_dir)
    paths = agents or [_DEMO_AGENT]
    watch = SourceWatch(find_roots(paths, Path.cwd())) if reload else None
    if _run_until_signal(_dev(settings, paths, port, ui_port, watch)):
        out.print("Stopped.")


async def _dev(
    settings: Settings,
    agents: list[str],
    port: int | None,
    ui_port: int | None,
    watch: SourceWatch | None,
) -> None:
    _print_text(f"Starting in {settings.data_dir}")
    report = _StartReport()
    async with contextlib.AsyncExitStack() as cleanup:
        cleanup.callback(report.end_line)
        stack = await cleanup.enter_async_context(
            EmbeddedStack.open(
                settings,
                agents,
                port=port,
                ui_port=ui_port,
                report=report,
                worker_may_fail=watch is not None,
                live=True,
            )
        )
        report.end_line()
        rows = _describe_stack(stack)
        if watch is not None:
            rows.append(("reload", _describe_watch(watch)))
        if not stack.agent_names:
            _print_failure(stack.worker)
        _print_text("\n" + "\n".join(f"{label:<12} {text}" for label, text in rows))
        if stack.agent_names:
            _print_text("\n" + _describe_next_commands(stack))
        _print_text("\nCtrl-C stops everything; the data stays.")
        if watch is None:
            await stack.wait()
        else:
            await _run_with_reload(stack, watch)


class _StartReport:
    """A line for each part that starts: its name while it is waited for, then its seconds."""

    def __init__(self) -> None:
        self._is_line_open = False

    def __call__(self, part: str, seconds: float | None) -> None:
        self._is_line_open = seconds is None
        if seconds is None:
            out.print(f"  {part} … ", end="")
        else:
            out.print(f"{seconds:.1f} s")

    def end_line(self) -> None:
        """End the line of a part that has not started."""
        if self._is_line_open:
            self._is_line_open = False
            out.print("not started")


async def _run_with_reload(stack: EmbeddedStack, watch: SourceWatch) -> None:
    """Restart the worker after each change, until a server ends by itself."""
    servers = asyncio.ensure_future(stack.wait(without_worker=True))
    shown = stack.agent_names
    while not servers.done():
        change = asyncio.ensure_future(watch.wait_for_change())
        end = asyncio.ensure_future(_report_end(stack))
        try:
            await asyncio.wait((servers, change), return_when=asyncio.FIRST_COMPLETED)
            if change.done():
                end.cancel()
                await _restart_worker(stack, change.result())
                if stack.agent_names and stack.agent_names != shown:
                    shown = stack.agent_names
                    _print_text(_describe_next_commands(stack))
        finally:
            end.cancel()
            change.cancel()
    servers.result()


async def _report_end(stack: EmbeddedStack) -> None:
    """Print the reason if the worker ends by itself."""
    if stack.agent_names:
        await stack.worker.wait()
        _print_failure(stack.worker)


async def _restart_worker(stack: EmbeddedStack, changed: Sequence[Path]) -> None:
    # The old worker stops first: while the new code fails to load, old code answers no message.
    names = [_shorten(path) for path in changed[:_CHANGES_SHOWN_MAX]]
    if len(changed) > len(names):
        names.append(f"{len(changed) - len(names)} more")
    started = time.monotonic()
    _print_text(f"{', '.join(names)} changed: restarting the worker … ", end="")
    try:
        await stack.replace_worker()
    except ProcessFailed:
        out.print("failed")
        _print_failure(stack.worker)
        return
    out.print(f"{time.monotonic() - started:.1f} s")


def _print_failure(worker: ManagedProcess) -> None:
    lines = worker.output().splitlines()
    said = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if said:
        text = "\n".join(lines[said[-1] :])
    elif worker.returncode is not None:
        text = f"error: {worker.make_exit_error()}"
    else:
        text = f"error: the worker has not started yet. Its log is {worker.log}"
    err.print(sanitise(text), markup=False, soft_wrap=True)
    err.print("No worker runs now: threads wait. The next change to a file starts it again.")


def _describe_stack(stack: EmbeddedStack) -> list[tuple[str, str]]:
    names, paths = stack.agent_names, stack.agents
    both = [f"{name} ({path})" for name, path in zip(names, paths, strict=False)]
    return [
        ("dashboard", stack.admin_url),
        ("Temporal UI", stack.server.ui_url),
        ("Temporal", f"{stack.server.address}, task queue {stack.settings.task_queue}"),
        ("store", stack.settings.store),
        ("agents", ", ".join(both if len(names) == len(paths) else names or paths)),
        ("logs", str(stack.settings.data_dir)),
    ]


def _describe_watch(watch: SourceWatch) -> str:
    here = Path.cwd()
    roots = ", ".join("this directory" if root == here else str(root) for root in watch.roots)
    bound = "" if watch.is_complete else ", and no more: too many to watch all"
    return f"{watch.files} Python file{'s' * (watch.files != 1)} in {roots}{bound}"


def _shorten(path: Path) -> str:
    """Return a path relative to this directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _describe_next_commands(stack: EmbeddedStack) -> str:
    """Return commands for a second terminal that work as they are, with the first agent's own name."""
    name = stack.agent_names[0]
    thread_id = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', name).strip('-') or 'thread'}-1"
    command = find_command()
    exports = _list_exports(stack)
    where = "" if exports else ", in this directory"
    lines = [
        *([f"export {' '.join(exports)}"] if exports else []),
        f"{command} send {thread_id} 'Hello' --agent {shlex.quote(name)}",
        f"{command} chat {thread_id} --agent {shlex.quote(name)}",
        f"{command} show {thread_id}",
        f"{command} threads",
    ]
    return f"In a second terminal{where}:\n" + "\n".join(f"  {line}" for line in lines)


def _list_exports(stack: EmbeddedStack) -> list[str]:
    """Return the variables without which a command in this directory would not find the stack."""
    address, store = stack.server.address, stack.settings.store
    try:
        found = load_settings()
    except ConfigError:
        return [f"TEMPORAL_ADDRESS={address}", f"EVERLONG_STORE={shlex.quote(store)}"]
    namespace = found.temporal.get("namespace") or EMBEDDED_NAMESPACE
    wanted = {
        "TEMPORAL_ADDRESS": (found.temporal.get("target_host"), address),
        "TEMPORAL_NAMESPACE": (namespace, EMBEDDED_NAMESPACE),
        "EVERLONG_STORE": (found.store, store),
    }
    return [f"{name}={shlex.quote(to)}" for name, (now, to) in wanted.items() if now != to]


def _print_text(text: str, end: str = "\n") -> None:
    out.print(sanitise(text), markup=False, soft_wrap=True, end=end)


def _load_embedded_settings(data_dir: Path | None) -> Settings:
    """Return settings for the embedded stack, without the user's own Temporal connection."""
    settings = load_settings(drop_temporal_variables())
    if data_dir is not None:
        settings = dataclasses.replace(settings, data_dir=data_dir.absolute())
    return settings


def _run_until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Run work to its end, clean-up included; return whether Ctrl-C or SIGTERM cancelled it."""

    async def until_stopped() -> bool:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    return asyncio.run(until_stopped())
