"""Everlong: long-running AI agents on Temporal whose state stays small."""

from everlong.agents import Agent, CallInfo, Model, Reply, Tool, current_call, tool
from everlong.client.entry import ask, thread, threads
from everlong.errors import EverlongError
from everlong.models import ThreadStart
from everlong.plugin import EverlongPlugin
from everlong.policy import Policy
from everlong.storage import BlobStore, open_store

__version__ = "0.1.0.dev0"

__all__ = [
    "Agent",
    "BlobStore",
    "CallInfo",
    "EverlongError",
    "EverlongPlugin",
    "Model",
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
