"""Live channel: text of replies in progress, and progress of tools, from workers to listeners.

Best effort. It holds no state of a thread: what a listener misses is in the journal.
"""

from everlong.live.models import LiveServer
from everlong.live.sender import LiveSender

__all__ = ["LiveSender", "LiveServer"]
