"""The process of `everlong worker`: runs agents until SIGINT or SIGTERM."""

import asyncio
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker, WorkerDeploymentConfig

from everlong.agents import Agent
from everlong.banner import describe_worker, format_banner
from everlong.config import Settings, require_deployment
from everlong.connection import connect, open_configured_providers
from everlong.errors import AgentNotFound, ServerUnreachable
from everlong.models import make_printable
from everlong.worker_options import READY

SERVICE_NAME: Final = "everlong-worker"
# Time for activities in progress to finish after SIGTERM. The others are retried on another worker.
_GRACE: Final = timedelta(seconds=10)
_HERE: Final = str(Path(__file__).parent)


def load_agent(path: str) -> Agent:
    """Return the agent at `module:name`; the module may be in the current directory."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise AgentNotFound(f"{path!r} is not module:agent; write it as in app:ops")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # The user's module may raise anything.
        raise AgentNotFound(_describe_import_failure(module_name, error)) from error
    agent = getattr(module, name, None)
    if isinstance(agent, Agent):
        return agent
    others = [each for each, value in vars(module).items() if isinstance(value, Agent)]
    raise AgentNotFound(
        f"{module_name!r} has no everlong.Agent named {name!r}. "
        + (f"It has: {', '.join(others[:10])}." if others else "It has none.")
    )


def _describe_import_failure(module_name: str, error: Exception) -> str:
    what = f"importing {module_name!r} failed"
    if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
        fix = "Run this in the directory that holds the module, or install it."
        return f"{what}: {type(error).__name__}: {error}. {fix}"
    if isinstance(error, SyntaxError):
        return f"{what}: {error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        # The user's own code: a worker that is installed elsewhere raises in their line too.
        if not frame.filename.startswith((sys.prefix, sys.base_prefix, _HERE, "<"))
    ]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return f"{what}: {place}{type(error).__name__}: {error}"


async def run_worker(settings: Settings, agents: Sequence[Agent]) -> None:
    """Run agents until SIGINT or SIGTERM; then let activities in progress finish."""
    deployment = _make_deployment(settings)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    providers = open_configured_providers(settings, SERVICE_NAME)
    try:
        for agent in agents:
            agent.check()
        core = providers.open_core()
        client = await connect(
            settings,
            agents=agents,
            tracer_provider=providers.tracer_provider,
            meter_provider=providers.meter_provider,
            runtime=core.runtime if core else None,
        )
        worker = Worker(
            client,
            task_queue=settings.task_queue,
            graceful_shutdown_timeout=_GRACE,
            deployment_config=deployment,
            **settings.worker.to_arguments(),
        )
        try:
            await _check_namespace(client)
            async with worker:
                rows = describe_worker(
                    settings,
                    agents,
                    version=deployment.version.to_canonical_string() if deployment else "",
                    metrics_url=providers.endpoint.url if providers.endpoint else "",
                )
                names = ", ".join(agent.name for agent in agents)
                ready = f"{READY}: {names} on task queue {settings.task_queue}"
                print(f"{format_banner('worker', rows)}\n{ready}", flush=True)  # noqa: T201
                await stopping.wait()
        except RuntimeError as error:
            raise ServerUnreachable(
                f"the worker cannot continue: {make_printable(str(error), 300)}. Check "
                "TEMPORAL_NAMESPACE and the server."
            ) from error
    finally:
        # Flush spans and metrics now: `cli.app.run` exits without the interpreter's clean-up.
        await asyncio.to_thread(providers.shutdown)


async def _check_namespace(client: Client) -> None:
    """Raise if the namespace does not exist: a worker of SDK 1.33 would wait for it without an error."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            raise ServerUnreachable(
                f"namespace {client.namespace!r} does not exist. Check TEMPORAL_NAMESPACE and the "
                "server."
            ) from error


def _make_deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return the worker's version, if configured. The workflows declare their versioning behavior."""
    checked = require_deployment(settings)
    if checked is None:
        return None
    name, build_id = checked
    version = WorkerDeploymentVersion(deployment_name=name, build_id=build_id)
    return WorkerDeploymentConfig(version=version, use_worker_versioning=True)
