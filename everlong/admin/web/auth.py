"""Who somebody is: by a bearer token, a session, a proxy's header, or by being on this machine.

Headers of a proxy are believed only where that was configured, and only from its addresses. With none of
the three configured, everybody is let in who reaches the port: so that is loopback.
"""

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
from everlong.models import printable


class Role(StrEnum):
    """What somebody is here. Each may read; an admin may do everything."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


_ALL: Final = frozenset(Role)
_OPERATORS: Final = frozenset({Role.OPERATOR, Role.ADMIN})
_APPROVERS: Final = frozenset({Role.APPROVER, Role.ADMIN})
_ADMINS: Final = frozenset({Role.ADMIN})

PERMISSIONS: Final[Mapping[str, frozenset[Role]]] = {
    # What threads hold: lists, journals, contexts, archives, and what an action would do.
    "read": _ALL,
    "decode": _ALL,
    "query": _ALL,
    # What is encoded may be written to the store.
    "encode": _OPERATORS,
    "send": _OPERATORS,
    "compact": _OPERATORS,
    "pause": _OPERATORS,
    "unpause": _OPERATORS,
    "stop": _OPERATORS,
    "limits": _OPERATORS,
    "fork": _OPERATORS,
    "archive": _OPERATORS,
    # As `stop`: the thread ends.
    "archive-close": _OPERATORS,
    "revive": _OPERATORS,
    "decide": _APPROVERS,
    # They delete: a thread's histories, or what lies in the store.
    "archive-free": _ADMINS,
    "sweep": _ADMINS,
}
"""Actions, and the roles that may do them."""


ARCHIVE_THEN: Final[Mapping[str, str]] = {
    "keep": "archive",
    "close": "archive-close",
    "free": "archive-free",
}
"""What becomes of an archived thread, and the action that one has to be allowed."""


def is_allowed(role: Role, action: str) -> bool:
    """Tell whether a role may do something. What is not in the table, nobody may."""
    return role in PERMISSIONS.get(action, frozenset())


def allowed_to(role: Role) -> tuple[str, ...]:
    """Return all that a role may do."""
    return tuple(action for action, roles in PERMISSIONS.items() if role in roles)


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


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
TOKENS_MAX: Final = 100
TOKEN_CHARS_MIN: Final = 16
NAME_CHARS_MAX: Final = 64
"""As long as the journal takes a name."""
_NAME: Final = re.compile(r"[^\s:,][^:,\x00-\x1f\x7f]{0,63}")
_SHARED_NAME: Final = "admin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class User:
    """Somebody who was let in."""

    name: str
    """Empty for somebody on this machine, who is asked for it."""
    role: Role
    via: Literal["token", "session", "proxy", "loopback"]

    def may(self, action: str) -> bool:
        """Tell whether they may do something."""
        return is_allowed(self.role, action)

    def acts_as(self, given: str) -> str:
        """Return the name that a change is journalled with. Only who has none may say one."""
        if self.name:
            return self.name
        return printable(given.strip(), NAME_CHARS_MAX).strip() or _system_name()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grant:
    """A token, and whom it stands for."""

    name: str
    role: Role
    token: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proxy:
    """Headers that are believed, and from where."""

    user_header: str
    role_header: str
    role: Role
    """Of those for whom the proxy names no role."""
    networks: tuple[Network, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """Whom to let in."""

    grants: tuple[Grant, ...] = ()
    proxy: Proxy | None = None
    hosts: tuple[str, ...] = ()
    """Names that browsers reach this server by, with a port if it is not the scheme's own."""
    sessions: Sessions = dataclasses.field(default_factory=Sessions)

    @property
    def is_open(self) -> bool:
        """Whether everybody is let in who reaches the port."""
        return not self.grants and self.proxy is None

    def by_token(self, token: str) -> User | None:
        """Return whom a token stands for. How long it takes tells nothing of how wrong it is."""
        found = None
        given = token.encode(errors="replace")
        for grant in self.grants:
            if hmac.compare_digest(given, grant.token.encode()):
                found = User(name=grant.name, role=grant.role, via="token")
        return found

    def by_session(self, session_id: str) -> User | None:
        """Return whose session that is."""
        session = self.sessions.find(session_id)
        if session is None:
            return None
        return User(name=session.name, role=session.role, via="session")

    def by_proxy(self, headers: Mapping[str, str], address: str) -> User | None:
        """Return whom a trusted proxy names."""
        proxy = self.proxy
        if proxy is None or not _is_inside(address, proxy.networks):
            return None
        name = headers.get(proxy.user_header, "").strip()[:NAME_CHARS_MAX]
        if not name or not name.isprintable():
            return None
        said = headers.get(proxy.role_header, "").strip().lower() if proxy.role_header else ""
        if said and said not in set(Role):
            return None
        return User(name=name, role=Role(said) if said else proxy.role, via="proxy")

    def user(self, headers: Mapping[str, str], address: str, session_id: str = "") -> User | None:
        """Return who asks, by what their request says; None if nobody knows them."""
        if self.is_open:
            return User(name="", role=Role.ADMIN, via="loopback")
        token = bearer_of(headers)
        if token is not None:
            return self.by_token(token)
        return self.by_proxy(headers, address) or self.by_session(session_id)


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token that a request shows; None if it shows none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def open_access(settings: Settings) -> Access:
    """Return whom the settings let in."""
    grants = parse_tokens(settings.tokens)
    if settings.token:
        _check_token(settings.token, "EVERLONG_TOKEN")
        if any(grant.token == settings.token for grant in grants):
            raise ConfigError(
                "EVERLONG_TOKENS has the token of EVERLONG_TOKEN, whose role is admin. Give each "
                "person their own."
            )
        grants = (Grant(name=_SHARED_NAME, role=Role.ADMIN, token=settings.token), *grants)
    hosts = tuple(_host(each.strip()) for each in settings.hosts.split(",") if each.strip())
    return Access(grants=grants, proxy=_proxy(settings, hosts), hosts=hosts)


def parse_tokens(text: str) -> tuple[Grant, ...]:
    """Return the grants of `name:role:token`, comma-separated."""
    parts = [each.strip() for each in text.split(",") if each.strip()]
    if len(parts) > TOKENS_MAX:
        raise ConfigError(f"EVERLONG_TOKENS has {len(parts)} tokens; {TOKENS_MAX} is the most")
    grants = tuple(_grant(number, part) for number, part in enumerate(parts, 1))
    if len({grant.token for grant in grants}) < len(grants):
        raise ConfigError("EVERLONG_TOKENS has the same token twice; give each person their own")
    return grants


def _grant(number: int, text: str) -> Grant:
    # A token is never part of a message, so neither is an entry that does not parse.
    name, _, rest = text.partition(":")
    role, colon, token = rest.partition(":")
    if not colon or not _NAME.fullmatch(name) or role not in set(Role):
        raise ConfigError(
            f"entry {number} of EVERLONG_TOKENS is not name:role:token, with a role of "
            f"{', '.join(Role)}"
        )
    _check_token(token, f"the token of {name!r} in EVERLONG_TOKENS")
    return Grant(name=name, role=Role(role), token=token)


def _check_token(token: str, what: str) -> None:
    if len(token) < TOKEN_CHARS_MIN or not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{what} has fewer than {TOKEN_CHARS_MIN} plain characters, or others among them. "
            "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )


def _host(text: str) -> str:
    if place_of(text) is None:
        raise ConfigError(
            f"{text[:50]!r} in EVERLONG_HOSTS is no name of a host; give some as ops.example.org, or "
            "ops.example.org:8443"
        )
    return text.lower()


def _proxy(settings: Settings, hosts: Sequence[str]) -> Proxy | None:
    if not settings.trust_user_header:
        return None
    if not settings.trusted_proxies or not hosts:
        # A page that points its own name at this port could send any header, as its own origin.
        raise ConfigError(
            "EVERLONG_TRUST_USER_HEADER is set, so EVERLONG_TRUSTED_PROXIES has to name the addresses "
            "that may send it, and EVERLONG_HOSTS the names that browsers reach the dashboard by."
        )
    return Proxy(
        user_header=settings.trust_user_header.lower(),
        role_header=settings.trust_role_header.lower(),
        role=_role(settings.trust_role_default),
        networks=tuple(_network(each.strip()) for each in settings.trusted_proxies.split(",")),
    )


def _role(text: str) -> Role:
    try:
        return Role(text or Role.VIEWER)
    except ValueError:
        raise ConfigError(
            f"EVERLONG_TRUST_ROLE_DEFAULT is {text[:20]!r}; give one of {', '.join(Role)}"
        ) from None


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ConfigError(
            f"{text[:50]!r} in EVERLONG_TRUSTED_PROXIES is no address; give some as 10.0.0.5 or "
            "10.0.0.0/24"
        ) from None


def _is_inside(address: str, networks: Sequence[Network]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in networks)


def _system_name() -> str:
    try:
        return getpass.getuser()[:NAME_CHARS_MAX]
    except (KeyError, OSError):
        return "somebody"


_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


def place_of(netloc: str, scheme: str = "https") -> tuple[str, int] | None:
    """Return the host and the port of `host:port`, or the scheme's own port; None if it is neither."""
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port
    except ValueError:
        return None
    if parts.netloc != netloc or "@" in netloc or not parts.hostname or scheme not in _PORTS:
        return None
    return parts.hostname, _PORTS[scheme] if port is None else port


def host_of(netloc: str) -> str:
    """Return `host:port` without the port, as a request's Host header is compared with it."""
    place = place_of(netloc)
    host = place[0] if place else netloc
    return f"[{host}]" if ":" in host else host


def needs(action: str) -> dict[str, Any]:
    """Return what a route is declared with that only some roles may use."""
    return {
        "dependencies": [Depends(checking(action))],
        "openapi_extra": {"x-permission": action},
    }


def checking(action: str) -> Callable[[Request], None]:
    """Return a dependency that refuses those who may not do something."""
    if action not in PERMISSIONS:
        raise ValueError(f"there is no permission {action!r}")

    def check(request: Request) -> None:
        check_may(getattr(request.state, "user", None), action)

    return check


def check_may(user: User | None, action: str) -> None:
    """Refuse what somebody's role may not do."""
    if user is None or not user.may(action):
        role = "nobody" if user is None else user.role
        wanted = " or ".join(sorted(PERMISSIONS[action]))
        raise HTTPException(403, f"{role} may not {action}; that takes {wanted}.")


def current_user(request: Request) -> User:
    """Return who asks. The guard has let them in."""
    user: User = request.state.user
    return user


CurrentUser = Annotated[User, Depends(current_user)]
