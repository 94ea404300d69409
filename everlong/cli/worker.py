"""`everlong worker`: runs agents against the configured Temporal server."""

import asyncio
import dataclasses
from typing import Annotated, Any

import typer

from everlong import limits, worker_options
from everlong.cli.help import Commands
from everlong.config import load_settings
from everlong.worker import load_agent, run_worker

commands = Commands()


def _make_worker_option(allowed: worker_options.Range, text: str, metavar: str = "N") -> Any:
    """Return an option of `everlong worker` with its bounds."""
    return typer.Option(min=allowed.least, max=allowed.most, metavar=metavar, help=text)


@commands.command()
def worker(
    agents: Annotated[list[str], typer.Argument(metavar="MODULE:AGENT", help="Agents to run.")],
    deployment: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Worker deployment, for worker versioning; or EVERLONG_DEPLOYMENT. It gets no "
            "threads until one of its versions is current.",
        ),
    ] = "",
    build_id: Annotated[
        str,
        typer.Option(metavar="ID", help="Version within the deployment; or EVERLONG_BUILD_ID."),
    ] = "",
    workflow_tasks: Annotated[
        int | None,
        _make_worker_option(
            worker_options.WORKFLOW_TASKS,
            "Concurrent workflow tasks: steps of threads, without their model calls and tools. With "
            "fewer, tasks wait at the server and may time out; with more, each one is slower. "
            f"Default: {limits.WORKFLOW_TASKS}.",
        ),
    ] = None,
    activities: Annotated[
        int | None,
        _make_worker_option(
            worker_options.ACTIVITIES,
            "Concurrent model calls and tools. They mostly wait: raise it if slots are used up while "
            "the processor is idle, lower it if tools need much memory. Default: 100.",
        ),
    ] = None,
    cached_threads: Annotated[
        int | None,
        _make_worker_option(
            worker_options.CACHED_THREADS,
            "Threads kept in memory between their steps; others are replayed. Raise it above the number "
            "of threads that are active at once, lower it if memory is short. "
            "Default: 1000.",
        ),
    ] = None,
    sticky_seconds: Annotated[
        float | None,
        _make_worker_option(
            worker_options.STICKY_SECONDS,
            "Seconds that a task waits for the worker that has its thread in memory, before any worker "
            "may take it. Shorter: threads of a killed worker resume sooner. Longer: fewer replays "
            f"while workers are busy. Default: {limits.STICKY_SECONDS:g}.",
            "SECONDS",
        ),
    ] = None,
    workflow_pollers: Annotated[
        int | None,
        _make_worker_option(
            worker_options.WORKFLOW_POLLERS,
            "Concurrent polls for workflow tasks. One in 20 of them, and at least one, accepts threads "
            "that are not in memory; with fewer polls, a busy worker accepts new threads faster than it "
            f"advances those it has. Default: {limits.WORKFLOW_POLLERS}.",
        ),
    ] = None,
    activity_pollers: Annotated[
        int | None,
        _make_worker_option(
            worker_options.ACTIVITY_POLLERS,
            "Concurrent polls for model calls and tools. Raise it if they wait in the queue while slots "
            "are free. Default: 5.",
        ),
    ] = None,
    identity: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The worker's name in histories, lists of pollers and everlong doctor. Must be unique. "
            "Default: process id and host.",
        ),
    ] = "",
) -> None:
    """Run agents on the configured Temporal server, until Ctrl-C.

    It reads TEMPORAL_ADDRESS, EVERLONG_STORE, EVERLONG_TASK_QUEUE, OTEL_TRACES_EXPORTER and
    OTEL_METRICS_EXPORTER. Each option has a variable, as EVERLONG_WORKFLOW_TASKS for --workflow-tasks;
    the option wins.

    Examples:
        everlong worker app:ops app:support

    """
    settings = load_settings()
    given = {
        "workflow_tasks": workflow_tasks,
        "activities": activities,
        "cached_threads": cached_threads,
        "sticky_seconds": sticky_seconds,
        "workflow_pollers": workflow_pollers,
        "activity_pollers": activity_pollers,
        "identity": worker_options.check_identity("--identity", identity) or None,
    }
    settings = dataclasses.replace(
        settings,
        deployment=deployment or settings.deployment,
        build_id=build_id or settings.build_id,
        worker=settings.worker.merge(given),
    )
    asyncio.run(run_worker(settings, [load_agent(path) for path in agents]))
