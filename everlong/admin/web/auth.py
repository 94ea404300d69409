"""Authentication and authorization of the admin server.

A request is authenticated by a bearer token, by a session cookie, or by a proxy's header. Proxy headers
are trusted only if that is configured, and only from the proxy's addresses. If none of the three is
configured, every request is accepted, and `check_exposure` allows loopback only.
"""

import asyncio
import dataclasses
import getpass
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request

from everlong.config import Settings
from everlong.errors import ConfigError
from everlong.models import make_printable


class Role(StrEnum):
    """Role of a user. Every role but `worker` may read; an admin may do everything."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"
    WORKER = "worker"
    """A worker that posts live output. It may not read."""


TOO_MANY_WRONG_TOKENS: Final = "Too many wrong tokens. Try again later."
# Delay of each response to a wrong token, and how many requests are delayed at a time.
_WRONG_SECONDS: Final = 0.5
_WRONG_MAX: Final = 16
_ALL: Final = frozenset(Role) - {Role.WORKER}
_OPERATORS: Final = frozenset({Role.OPERATOR, Role.ADMIN})
_APPROVERS: Final = frozenset({Role.APPROVER, Role.ADMIN})
_ADMINS: Final = frozenset({Role.ADMIN})
_WORKERS: Final = frozenset({Role.WORKER, Role.ADMIN})

PERMISSIONS: Final[Mapping[str, frozenset[Role]]] = {
    # Contents of threads: lists, journals, contexts, archives, and previews of actions.
    "read": _ALL,
    "decode": _ALL,
    "query": _ALL,
    # Encoding may write to the store.
    "encode": _OPERATORS,
    "send": _OPERATORS,
    "label": _OPERATORS,
    "compact": _OPERATORS,
    "pause": _OPERATORS,
    "unpause": _OPERATORS,
    "stop": _OPERATORS,
    "limits": _OPERATORS,
    "fork": _OPERATORS,
    "rerun": _OPERATORS,
    "archive": _OPERATORS,
    # Same roles as `stop`: the thread ends.
    "archive-close": _OPERATORS,
    "revive": _OPERATORS,
    # The action itself is checked too, for the role that it needs.
    "bulk": _OPERATORS,
    "decide": _APPROVERS,
    # Both delete data: a thread's histories, or objects in the store.
    "archive-free": _ADMINS,
    "sweep": _ADMINS,
    # Output of steps that listeners are shown; it is stored nowhere.
    "live": _WORKERS,
}
"""Actions, and the roles that may do them."""


ARCHIVE_THEN: Final[Mapping[str, str]] = {
    "keep": "archive",
    "close": "archive-close",
    "free": "archive-free",
}
"""Permission that each `then` of an archive request needs."""


def is_allowed(role: Role, action: str) -> bool:
    """Return whether a role may do an action. No role may do an action that is not in the table."""
    return role in PERMISSIONS.get(action, frozenset())


def list_actions(role: Role) -> tuple[str, ...]:
    """Return all actions of a role."""
    return tuple(action for action, roles in PERMISSIONS.items() if role in roles)


COOKIE: Final = "everlong_session"
SESSIONS_MAX: Final = 1_000
"""At 300 bytes each. Beyond it, the least recently used session ends."""
SESSIONS_PER_USER_MAX: Final = 50
"""Beyond it, the user's own least recently used session ends, never another user's."""
SESSION_SECONDS_MAX: Final = 12 * 3600.0
"""A working day. Then the user logs in again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """A browser session that began with a valid token."""

    name: str
    role: Role
    ends: float
    """End, by the monotonic clock."""


class Sessions:
    """Open sessions, by the random id in the browser's cookie.

    They are kept in this process only: after a restart users log in again.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def open(self, name: str, role: Role) -> str:
        """Start a session and return its id."""
        theirs = [key for key, session in self._sessions.items() if session.name == name]
        if len(theirs) >= SESSIONS_PER_USER_MAX:
            self.close(theirs[0])
        session_id = secrets.token_urlsafe(32)
        ends = time.monotonic() + SESSION_SECONDS_MAX
        self._sessions[session_id] = Session(name=name, role=role, ends=ends)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def find(self, session_id: str) -> Session | None:
        """Return a session that has not expired, or None."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        if session.ends < time.monotonic():
            self.close(session_id)
            return None
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: str) -> None:
        """End a session, if it exists."""
        self._sessions.pop(session_id, None)

    def __len__(self) -> int:
        return len(self._sessions)


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
TOKENS_MAX: Final = 100
TOKEN_CHARS_MIN: Final = 16
NAME_CHARS_MAX: Final = 64
"""The journal accepts no longer name."""
_NAME: Final = re.compile(r"[^\s:,][^:,\x00-\x1f\x7f]{0,63}")
_SHARED_NAME: Final = "admin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class User:
    """An authenticated user."""

    name: str
    """Empty for a user on this machine without a token: each change then names its author."""
    role: Role
    via: Literal["token", "session", "proxy", "loopback"]

    def may(self, action: str) -> bool:
        """Return whether the user may do an action."""
        return is_allowed(self.role, action)

    def resolve_author(self, given: str) -> str:
        """Return the author to journal for a change. `given` counts only if the user has no name."""
        if self.name:
            return self.name
        return make_printable(given.strip(), NAME_CHARS_MAX).strip() or _find_system_user()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grant:
    """A token with the name and role of its user."""

    name: str
    role: Role
    token: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proxy:
    """Trusted proxy headers, and the addresses that may send them."""

    user_header: str
    role_header: str
    role: Role
    """Default role, if the proxy sends none."""
    networks: tuple[Network, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """Configured tokens, proxy and hosts, and the open sessions."""

    grants: tuple[Grant, ...] = ()
    proxy: Proxy | None = None
    hosts: tuple[str, ...] = ()
    """Host names of this server in browsers, with a port if it is not the scheme's default."""
    sessions: Sessions = dataclasses.field(default_factory=Sessions)

    @property
    def is_open(self) -> bool:
        """Whether every request is accepted without authentication."""
        return not self.grants and self.proxy is None

    def find_by_token(self, token: str) -> User | None:
        """Return the user of a token, or None. Compares in constant time."""
        found = None
        given = token.encode(errors="replace")
        for grant in self.grants:
            if hmac.compare_digest(given, grant.token.encode()):
                found = User(name=grant.name, role=grant.role, via="token")
        return found

    def find_by_session(self, session_id: str) -> User | None:
        """Return the user of a session, or None."""
        session = self.sessions.find(session_id)
        if session is None:
            return None
        return User(name=session.name, role=session.role, via="session")

    def find_by_proxy(self, headers: Mapping[str, str], address: str) -> User | None:
        """Return the user that a trusted proxy names, or None."""
        proxy = self.proxy
        if proxy is None or not _is_in_networks(address, proxy.networks):
            return None
        name = headers.get(proxy.user_header, "").strip()[:NAME_CHARS_MAX]
        if not name or not name.isprintable():
            return None
        role = headers.get(proxy.role_header, "").strip().lower() if proxy.role_header else ""
        if role and role not in set(Role):
            return None
        return User(name=name, role=Role(role) if role else proxy.role, via="proxy")

    def authenticate(
        self, headers: Mapping[str, str], address: str, session_id: str = ""
    ) -> User | None:
        """Return the user of a request, or None if the request is not authenticated."""
        if self.is_open:
            return User(name="", role=Role.ADMIN, via="loopback")
        token = read_bearer_token(headers)
        if token is not None:
            return self.find_by_token(token)
        return self.find_by_proxy(headers, address) or self.find_by_session(session_id)


def read_bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token of a request, or None if it has none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def load_access(settings: Settings) -> Access:
    """Return the access that the settings configure."""
    grants = parse_tokens(settings.tokens)
    if settings.token:
        _check_token(settings.token, "EVERLONG_TOKEN")
        if any(grant.token == settings.token for grant in grants):
            raise ConfigError(
                "EVERLONG_TOKENS contains the token of EVERLONG_TOKEN, whose role is admin. Give each "
                "user a separate token."
            )
        grants = (Grant(name=_SHARED_NAME, role=Role.ADMIN, token=settings.token), *grants)
    hosts = tuple(_parse_host(each.strip()) for each in settings.hosts.split(",") if each.strip())
    return Access(grants=grants, proxy=_parse_proxy(settings, hosts), hosts=hosts)


def parse_tokens(text: str) -> tuple[Grant, ...]:
    """Return the grants of `name:role:token`, comma-separated."""
    parts = [each.strip() for each in text.split(",") if each.strip()]
    if len(parts) > TOKENS_MAX:
        raise ConfigError(
            f"EVERLONG_TOKENS has {len(parts)} tokens; at most {TOKENS_MAX} are allowed"
        )
    grants = tuple(_parse_grant(number, part) for number, part in enumerate(parts, 1))
    if len({grant.token for grant in grants}) < len(grants):
        raise ConfigError(
            "EVERLONG_TOKENS has the same token twice. Give each user a separate token."
        )
    return grants


def _parse_grant(number: int, text: str) -> Grant:
    # Messages never contain a token, so they do not quote an entry that does not parse.
    name, _, rest = text.partition(":")
    role, colon, token = rest.partition(":")
    if not colon or not _NAME.fullmatch(name) or role not in set(Role):
        raise ConfigError(
            f"entry {number} of EVERLONG_TOKENS is not name:role:token. The role is one of "
            f"{', '.join(Role)}."
        )
    _check_token(token, f"the token of {name!r} in EVERLONG_TOKENS")
    return Grant(name=name, role=Role(role), token=token)


def _check_token(token: str, what: str) -> None:
    if len(token) < TOKEN_CHARS_MIN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{what} needs at least {TOKEN_CHARS_MIN} characters, all of them printable ASCII. "
            "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )


def _parse_host(text: str) -> str:
    if parse_netloc(text) is None:
        raise ConfigError(
            f"{text[:50]!r} in EVERLONG_HOSTS is not a host name. Give names such as ops.example.org or "
            "ops.example.org:8443."
        )
    return text.lower()


def _parse_proxy(settings: Settings, hosts: Sequence[str]) -> Proxy | None:
    if not settings.trust_user_header:
        return None
    if not settings.trusted_proxies or not hosts:
        # DNS rebinding: a page that points its own host name at this port could send any header.
        raise ConfigError(
            "EVERLONG_TRUST_USER_HEADER is set. Set EVERLONG_TRUSTED_PROXIES to the addresses that may "
            "send it, and EVERLONG_HOSTS to the dashboard's host names in browsers."
        )
    return Proxy(
        user_header=settings.trust_user_header.lower(),
        role_header=settings.trust_role_header.lower(),
        role=_parse_role(settings.trust_role_default),
        networks=tuple(
            _parse_network(each.strip()) for each in settings.trusted_proxies.split(",")
        ),
    )


def _parse_role(text: str) -> Role:
    try:
        return Role(text or Role.VIEWER)
    except ValueError:
        raise ConfigError(
            f"EVERLONG_TRUST_ROLE_DEFAULT is {text[:20]!r}. Give one of {', '.join(Role)}."
        ) from None


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ConfigError(
            f"{text[:50]!r} in EVERLONG_TRUSTED_PROXIES is not an address. Give addresses such as "
            "10.0.0.5 or 10.0.0.0/24."
        ) from None


def _is_in_networks(address: str, networks: Sequence[Network]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in networks)


def _find_system_user() -> str:
    try:
        return getpass.getuser()[:NAME_CHARS_MAX]
    except (KeyError, OSError):
        return "unknown"


_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


def parse_netloc(netloc: str, scheme: str = "https") -> tuple[str, int] | None:
    """Return host and port of `host[:port]`, by default the scheme's port; None if it is neither."""
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port
    except ValueError:
        return None
    if parts.netloc != netloc or "@" in netloc or not parts.hostname or scheme not in _PORTS:
        return None
    return parts.hostname, _PORTS[scheme] if port is None else port


def strip_port(netloc: str) -> str:
    """Return `host:port` without the port, in the form of TrustedHostMiddleware."""
    place = parse_netloc(netloc)
    host = place[0] if place else netloc
    return f"[{host}]" if ":" in host else host


def requires(action: str) -> dict[str, Any]:
    """Return arguments for a route declaration that restrict it to the roles with a permission."""
    return {
        "dependencies": [Depends(make_permission_check(action))],
        "openapi_extra": {"x-permission": action},
    }


def make_permission_check(action: str) -> Callable[[Request], None]:
    """Return a FastAPI dependency that answers 403 to users without a permission."""
    if action not in PERMISSIONS:
        raise ValueError(f"unknown permission {action!r}")

    def check(request: Request) -> None:
        check_permission(getattr(request.state, "user", None), action)

    return check


def check_permission(user: User | None, action: str) -> None:
    """Raise a 403 if the user's role may not do an action."""
    if user is None or not user.may(action):
        role = "anonymous" if user is None else user.role
        wanted = " or ".join(sorted(PERMISSIONS[action]))
        raise HTTPException(403, f"The role {role} may not {action}. Ask for the role {wanted}.")


def get_current_user(request: Request) -> User:
    """Return the user, whom the guard has authenticated."""
    user: User = request.state.user
    return user


CurrentUser = Annotated[User, Depends(get_current_user)]


class Throttle:
    """Delays responses to wrong tokens, so that guessing is slow."""

    def __init__(self) -> None:
        self._waiting = 0

    async def delay(self) -> bool:
        """Wait. Returns False at once if too many requests are waiting already."""
        if self._waiting >= _WRONG_MAX:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(_WRONG_SECONDS)
        finally:
            self._waiting -= 1
        return True
