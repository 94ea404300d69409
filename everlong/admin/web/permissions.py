"""Who may do what: one table, which the API and the pages ask."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


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
