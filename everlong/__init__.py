"""Everlong: long-running AI agents on Temporal whose state stays small.

Names are imported on first use: all of them together take over a second of CPU, and a command or a
program may need few of them.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from everlong.agents import (
        Agent,
        CallInfo,
        Model,
        OutcomeUnknown,
        Reply,
        Tool,
        current_call,
        tool,
    )
    from everlong.client.thread import ask, thread
    from everlong.client.thread_list import threads
    from everlong.errors import EverlongError
    from everlong.models import Always, ThreadStart
    from everlong.plugin import EverlongPlugin
    from everlong.policy import Policy
    from everlong.storage import BlobStore, open_store

__version__ = "0.1.0.dev0"

__all__ = [
    "Agent",
    "Always",
    "BlobStore",
    "CallInfo",
    "EverlongError",
    "EverlongPlugin",
    "Model",
    "OutcomeUnknown",
    "Policy",
    "Reply",
    "ThreadStart",
    "Tool",
    "__version__",
    "ask",
    "current_call",
    "open_store",
    "thread",
    "threads",
    "tool",
]

_MODULES: Final = {
    "Agent": "agents",
    "Always": "models",
    "BlobStore": "storage",
    "CallInfo": "agents",
    "EverlongError": "errors",
    "EverlongPlugin": "plugin",
    "Model": "agents",
    "OutcomeUnknown": "agents",
    "Policy": "policy",
    "Reply": "agents",
    "ThreadStart": "models",
    "Tool": "agents",
    "ask": "client.thread",
    "current_call": "agents",
    "open_store": "storage",
    "thread": "client.thread",
    "threads": "client.thread_list",
    "tool": "agents",
}

# Available after `import everlong`, too.
_SUBMODULES: Final = ("agents", "errors", "models", "plugin", "policy", "storage")

if not TYPE_CHECKING:  # Type checkers would accept any name.

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return __import__(f"{__name__}.{name}", fromlist=["*"])
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # `__import__`, not importlib: Temporal's sandbox replaces it, and so passes modules through.
        # importlib would import a second copy in a workflow, with other classes.
        value = getattr(__import__(f"{__name__}.{_MODULES[name]}", fromlist=[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
