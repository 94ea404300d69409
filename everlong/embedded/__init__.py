"""The embedded stack: the real Temporal dev server, a worker and a codec server as child processes.

The one place that starts and stops servers: `everlong dev`, `everlong demo` and the tests use it.
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
