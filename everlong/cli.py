"""The `everlong` command. It reads arguments and prints; the work is done elsewhere."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import uvicorn
from rich.markup import escape
from rich.table import Table

import everlong
from everlong.admin import service
from everlong.admin.console import bytes_text, command, err, out, plain
from everlong.admin.web import check_exposure, create_app
from everlong.config import (
    Settings,
    environment_without_temporal,
    load_settings,
)
from everlong.connection import connect, open_configured_packs
from everlong.demo.run import run_demo
from everlong.embedded import EmbeddedStack
from everlong.embedded.server import is_free
from everlong.errors import EverlongError, PortInUse
from everlong.worker import load_agent, run_worker

app = typer.Typer(
    help="Long-running AI agents on Temporal whose state stays small.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    epilog="Begin with: everlong demo. Then: everlong dev, and in a second terminal everlong send.",
)

Port = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Port for Temporal; 7233, or a free one.")
]
UiPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port for the Temporal UI; 8233, or a free one."),
]
DataDir = Annotated[Path | None, typer.Option(help="Where everything is kept.")]
ThreadId = Annotated[str, typer.Argument(help="The thread's id, which is its workflow id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"everlong {everlong.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run agents for months, and see what they take up."""


@app.command()
def demo(port: Port = None, ui_port: UiPort = None, data_dir: DataDir = None) -> None:
    """Run an agent for 60 steps, kill its worker, resume it, and show what it took.

    Needs no API key and no network. Exits with 0 only if what it shows is true.
    """
    settings = _embedded_settings(data_dir or Path(".everlong/demo"))
    if _run(run_demo(settings, port=port, ui_port=ui_port)):
        raise typer.Exit(130)


@app.command()
def dev(
    agents: Annotated[
        list[str] | None,
        typer.Argument(help="Agents to run, as module:agent. Default: the demo's."),
    ] = None,
    port: Port = None,
    ui_port: UiPort = None,
    data_dir: DataDir = None,
) -> None:
    """Start Temporal, a blob store and a worker on this machine, until Ctrl-C.

    Its data stays in the data directory, its blob store too (EVERLONG_STORE is not read), and the
    next start goes on with it.
    """
    settings = _embedded_settings(data_dir)
    if _run(_dev(settings, agents or ["everlong.demo:agent"], port, ui_port)):
        out.print("Stopped.")


@app.command()
def worker(
    agents: Annotated[list[str], typer.Argument(help="Agents to run, as module:agent.")],
) -> None:
    """Run agents against the Temporal server of the environment, until Ctrl-C.

    TEMPORAL_ADDRESS, EVERLONG_STORE, EVERLONG_TASK_QUEUE and OTEL_TRACES_EXPORTER are read.
    """
    settings = load_settings()
    asyncio.run(run_worker(settings, [load_agent(path) for path in agents]))


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8234,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="The Temporal UI's origin, as in http://127.0.0.1:8233. Repeatable."),
    ] = None,
    allow_anonymous: Annotated[
        bool,
        typer.Option(
            help="Listen beyond loopback without EVERLONG_TOKEN. Only requests that name localhost "
            "or 127.0.0.1 are answered then."
        ),
    ] = False,
) -> None:
    """Serve the Temporal codec endpoints, so that the UI and CLI show real values.

    Try: temporal workflow show --codec-endpoint http://127.0.0.1:8234 -w THREAD
    """
    settings = load_settings()
    check_exposure(host, token=settings.token, allow_anonymous=allow_anonymous)
    if not is_free(port, host):
        raise PortInUse(f"port {port} is in use. Stop what listens there, or choose another.")
    web = create_app(
        open_configured_packs(settings), token=settings.token, cors_origins=cors_origin or ()
    )
    uvicorn.run(web, host=host, port=port, access_log=False)


@app.command()
def send(
    thread_id: ThreadId,
    text: str,
    agent: Annotated[
        str | None, typer.Option(help="Start the thread with this agent, if it does not exist.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the answer and print it.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 300.0,
) -> None:
    """Send a message to a thread and print the answer."""
    asyncio.run(_send(load_settings(), thread_id, text, agent, timeout if wait else 0.0))


@app.command()
def show(thread_id: ThreadId, as_json: Json = False) -> None:
    """Show how far a thread is and what it takes up."""
    asyncio.run(_show(load_settings(), thread_id, as_json))


@app.command()
def stop(thread_id: ThreadId) -> None:
    """Stop a thread at its next safe point. Its journal stays; it takes no more messages."""
    asyncio.run(_stop(load_settings(), thread_id))


async def _dev(
    settings: Settings, agents: list[str], port: int | None, ui_port: int | None
) -> None:
    out.print("Starting ...")
    async with EmbeddedStack.open(settings, agents, port=port, ui_port=ui_port) as stack:
        out.print(
            f"Temporal server  {stack.server.address}\n"
            f"Temporal UI      {stack.server.ui_url}\n"
            f"blob store       {stack.settings.store}\n"
            f"worker           {', '.join(agents)} on task queue {settings.task_queue}\n"
            f"logs             {settings.data_dir}\n\n"
            "In a second terminal:\n"
            f"  export TEMPORAL_ADDRESS={stack.server.address} EVERLONG_STORE={stack.settings.store}\n"
            f"  {command()} send hello-1 'Hello' --agent NAME\n\n"
            "Ctrl-C stops everything; the data stays.",
            soft_wrap=True,
        )
        await stack.wait()


async def _send(
    settings: Settings, thread_id: str, text: str, agent: str | None, seconds_max: float
) -> None:
    client = await connect(settings)
    number = await service.send(
        client, thread_id, text, task_queue=settings.task_queue, agent=agent
    )
    if not seconds_max:
        out.print(f"message {number} is queued on thread {thread_id}", markup=False)
        return
    waiting = f"message {number} is queued; waiting for the answer"
    with err.status(waiting) as line:
        await service.wait_for_status(
            client,
            thread_id,
            lambda status: status.counters.answered >= number,
            seconds_max=seconds_max,
            on_status=lambda status: line.update(
                f"held by {escape(plain(status.held_by))}" if status.held_by else waiting
            ),
        )
    conversation = await service.messages(client, open_configured_packs(settings), thread_id)
    out.print(plain(service.answer(conversation, number)), markup=False, soft_wrap=True)


async def _show(settings: Settings, thread_id: str, as_json: bool) -> None:
    client = await connect(settings)
    status = await service.status(client, thread_id)
    size = await service.size(client, open_configured_packs(settings).store, thread_id)
    if as_json:
        fields = dataclasses.asdict(status) | {"size": dataclasses.asdict(size)}
        out.print_json(json.dumps(fields))
        return
    counters = status.counters
    view = Table(title=escape(f"{thread_id} ({status.agent})"), show_header=False)
    view.add_row("status", status.status)
    view.add_row("messages", f"{counters.answered} of {counters.messages} answered")
    view.add_row("steps", f"{counters.steps} model calls, {counters.tool_calls} tool calls")
    view.add_row(
        "history", f"{bytes_text(size.history_bytes)} in {size.events} events, {size.runs} runs"
    )
    view.add_row("blobs", f"{bytes_text(size.blob_bytes)} in {size.blobs} objects")
    if status.held_by:
        view.add_row("held by", escape(plain(status.held_by)))
    if status.last_failure:
        view.add_row("last failure", escape(plain(status.last_failure)))
    out.print(view)


async def _stop(settings: Settings, thread_id: str) -> None:
    await service.stop(await connect(settings), thread_id)
    out.print(f"thread {thread_id} will stop at its next safe point", markup=False)


def _embedded_settings(data_dir: Path | None) -> Settings:
    """Return settings for the embedded stack: the user's own cluster is none of its business."""
    settings = load_settings(environment_without_temporal())
    if data_dir is not None:
        settings = dataclasses.replace(settings, data_dir=data_dir.absolute())
    return settings


def _run(work: Coroutine[Any, Any, None]) -> bool:
    """Run work; return whether Ctrl-C or SIGTERM ended it. It cleans up after itself first."""

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


def run() -> NoReturn:
    """Run the command; an error of our own is a message and an exit code, not a stack trace."""
    try:
        app()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    except EverlongError as error:
        err.print(f"error: {error}", markup=False, soft_wrap=True)
        code = error.exit_code
    with contextlib.suppress(BrokenPipeError):  # Whoever read our output has had enough.
        sys.stdout.flush()
        sys.stderr.flush()
    # All is closed by now. What is left is the SDK's native threads, which have crashed the
    # interpreter while it was taking itself apart, and tools that hang, which would hold it up.
    os._exit(code)
