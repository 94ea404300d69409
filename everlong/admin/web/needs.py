"""What a route asks of whoever uses it. The door has let them in; what they may do is asked here."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from everlong.admin.web.access import User
from everlong.admin.web.permissions import PERMISSIONS


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
