"""The embedded stack: Temporal's dev server, a worker and the admin server as child processes.

`everlong dev`, `everlong demo` and the tests start and stop all their servers here.
"""

from everlong.embedded.process import ManagedProcess
from everlong.embedded.server import TemporalServer, start_server
from everlong.embedded.stack import EmbeddedStack, start_codec_server, start_worker

__all__ = [
    "EmbeddedStack",
    "ManagedProcess",
    "TemporalServer",
    "start_codec_server",
    "start_server",
    "start_worker",
]
