"""Sessions of browsers. They live in this process: after a restart people log in again."""

import dataclasses
import secrets
import time
from collections import OrderedDict
from typing import Final

from everlong.admin.web.permissions import Role

COOKIE: Final = "everlong_session"
SESSIONS_MAX: Final = 1_000
"""At 300 bytes each. Beyond it, the one that was used longest ago ends."""
SESSIONS_OF_ONE_MAX: Final = 50
"""Of one name: beyond it, one of their own ends, and nobody else's."""
SESSION_SECONDS_MAX: Final = 12 * 3600.0
"""A working day; after that the token is asked for again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """A browser that has shown a token."""

    name: str
    role: Role
    ends: float
    """By the monotonic clock."""


class Sessions:
    """The sessions that there are, by the random id in the browser's cookie."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def open(self, name: str, role: Role) -> str:
        """Begin a session; return its id."""
        theirs = [key for key, session in self._sessions.items() if session.name == name]
        if len(theirs) >= SESSIONS_OF_ONE_MAX:
            self.close(theirs[0])
        session_id = secrets.token_urlsafe(32)
        ends = time.monotonic() + SESSION_SECONDS_MAX
        self._sessions[session_id] = Session(name=name, role=role, ends=ends)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def find(self, session_id: str) -> Session | None:
        """Return a session that has not ended."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if session.ends < time.monotonic():
            self.close(session_id)
            return None
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(session_id, None)

    def __len__(self) -> int:
        return len(self._sessions)
