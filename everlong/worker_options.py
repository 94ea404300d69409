"""Worker options: concurrency, caching and polling, and their defaults for workers that run only agents.

`everlong worker` takes each option on its command line or as a variable. In a program, they are
arguments of the SDK's `Worker`; the plugin also takes the sticky timeout. A value that is not given is
the SDK's default, or ours from `set_defaults`.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from everlong import limits
from everlong.errors import ConfigError

if TYPE_CHECKING:
    from temporalio.worker import PollerBehaviorSimpleMaximum, WorkerConfig

READY: Final = "everlong worker ready"
"""Beginning of the line that `everlong worker` prints once it polls."""
_STICKY: Final = "sticky_queue_schedule_to_start_timeout"
_SLOTS: Final = "max_concurrent_"


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option accepts, bounds included."""

    least: float
    most: float

    def check(self, name: str, value: float) -> None:
        """Raise `ConfigError` if the value is outside the range."""
        if not self.least <= value <= self.most:  # False for NaN too.
            raise ConfigError(f"{name} is {value:g}; give {self}")

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}"


# With a cache, the SDK needs at least two tasks and two polls: one for each of the worker's two queues.
# Each task needs an OS thread, hence the upper bound.
WORKFLOW_TASKS: Final = Range(2, 1000)
ACTIVITIES: Final = Range(1, limits.TOOL_THREADS_MAX)
# 0 switches the cache off: each task then replays its run from the start. Replay tests use this.
CACHED_THREADS: Final = Range(0, 100_000)
WORKFLOW_POLLERS: Final = Range(2, 100)
ACTIVITY_POLLERS: Final = Range(1, 100)
# Below 0.1 s, a worker that merely pauses loses its threads. Above a minute, the timeout has no effect:
# the server abandons a queue that was not polled for 10 s.
STICKY_SECONDS: Final = Range(0.1, 60)
IDENTITY_CHARS_MAX: Final = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of `everlong worker`. None stands for the default."""

    workflow_tasks: int | None = None
    """`EVERLONG_WORKFLOW_TASKS`: concurrent workflow tasks."""
    activities: int | None = None
    """`EVERLONG_ACTIVITIES`: concurrent model calls and tools."""
    cached_threads: int | None = None
    """`EVERLONG_CACHED_THREADS`: threads kept in memory between their steps."""
    workflow_pollers: int | None = None
    """`EVERLONG_WORKFLOW_POLLERS`: concurrent polls for workflow tasks."""
    activity_pollers: int | None = None
    """`EVERLONG_ACTIVITY_POLLERS`: concurrent polls for activities."""
    sticky_seconds: float | None = None
    """`EVERLONG_STICKY_SECONDS`: time that a task waits for the worker with its thread in memory."""
    identity: str = ""
    """`EVERLONG_IDENTITY`: the worker's name in histories and lists. Empty: process id and host."""

    def merge(self, given: Mapping[str, Any]) -> Self:
        """Return these options, replaced by those of `given` that are not None."""
        wanted = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(self, **wanted)

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments for the SDK's `Worker`. The plugin sets the sticky timeout."""
        given = {
            "max_concurrent_workflow_tasks": self.workflow_tasks,
            "max_concurrent_activities": self.activities,
            "max_cached_workflows": self.cached_threads,
            "workflow_task_poller_behavior": _build_pollers(self.workflow_pollers),
            "activity_task_poller_behavior": _build_pollers(self.activity_pollers),
            "identity": self.identity or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def load_worker_options(env: Mapping[str, str]) -> WorkerOptions:
    """Read the options from an environment."""
    return WorkerOptions(
        workflow_tasks=_read_int(env, "EVERLONG_WORKFLOW_TASKS", WORKFLOW_TASKS),
        activities=_read_int(env, "EVERLONG_ACTIVITIES", ACTIVITIES),
        cached_threads=_read_int(env, "EVERLONG_CACHED_THREADS", CACHED_THREADS),
        workflow_pollers=_read_int(env, "EVERLONG_WORKFLOW_POLLERS", WORKFLOW_POLLERS),
        activity_pollers=_read_int(env, "EVERLONG_ACTIVITY_POLLERS", ACTIVITY_POLLERS),
        sticky_seconds=_read_seconds(env, "EVERLONG_STICKY_SECONDS", STICKY_SECONDS),
        identity=check_identity("EVERLONG_IDENTITY", env.get("EVERLONG_IDENTITY", "")),
    )


def check_identity(name: str, text: str) -> str:
    """Return the identity; raise `ConfigError` if it is too long or not printable."""
    if len(text) > IDENTITY_CHARS_MAX or not text.isprintable():
        raise ConfigError(
            f"{name} has {len(text)} characters; give at most {IDENTITY_CHARS_MAX}, all printable"
        )
    return text


def set_defaults(
    config: "WorkerConfig", *, only_agents: bool, sticky_seconds: float | None
) -> None:
    """Set our defaults in a worker's configuration, in place.

    Precedence: arguments of the team's own `Worker`, recognised by a value other than the SDK's default;
    then the plugin's option, for any worker; then the defaults for agents. The latter apply only to
    workers that run nothing else: a thread replays cheaply, a team's own workflow may not.
    """
    wanted: dict[str, Any] = dict(_build_agent_defaults()) if only_agents else {}
    if sticky_seconds is not None:
        wanted[_STICKY] = timedelta(seconds=sticky_seconds)
    options: dict[str, Any] = config  # type: ignore[assignment] # names of its keys are variable here
    has_tuner = options.get("tuner") is not None
    for name, value in wanted.items():
        # The SDK accepts either a tuner or slot counts.
        is_tuned = has_tuner and name.startswith(_SLOTS)
        if options.get(name) == _get_sdk_default(name) and not is_tuned:
            options[name] = value


def _build_agent_defaults() -> dict[str, Any]:
    """Return the arguments of `Worker` for workers that run only agents."""
    return {
        _STICKY: timedelta(seconds=limits.STICKY_SECONDS),
        f"{_SLOTS}workflow_tasks": limits.WORKFLOW_TASKS,
        "workflow_task_poller_behavior": _build_pollers(limits.WORKFLOW_POLLERS),
        "nonsticky_to_sticky_poll_ratio": 1 / limits.WORKFLOW_POLLERS,
        "workflow_task_executor": ThreadPoolExecutor(
            limits.WORKFLOW_THREADS, thread_name_prefix="everlong-workflows"
        ),
    }


def _get_sdk_default(name: str) -> object:
    # Imported here: commands read the options of a worker too, and need nothing of the SDK's.
    from temporalio.worker import Worker

    return inspect.signature(Worker.__init__).parameters[name].default


def _build_pollers(count: int | None) -> "PollerBehaviorSimpleMaximum | None":
    from temporalio.worker import PollerBehaviorSimpleMaximum

    return None if count is None else PollerBehaviorSimpleMaximum(maximum=count)


def _read_int(env: Mapping[str, str], name: str, allowed: Range) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text[:20]!r}; give a whole number, {allowed}") from None
    allowed.check(name, value)
    return value


def _read_seconds(env: Mapping[str, str], name: str, allowed: Range) -> float | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name} is {text[:20]!r}; give seconds, {allowed}") from None
    allowed.check(name, value)
    return value
