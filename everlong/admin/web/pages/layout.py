"""Layout: the values that every page shows: the user, the namespace, the number of pending approvals."""

import contextlib
import dataclasses
from typing import Any

from fastapi import Request

from everlong.admin.web.auth import User
from everlong.admin.web.context import AppContext
from everlong.admin.web.pages.renderer import Renderer
from everlong.errors import EverlongError


@dataclasses.dataclass(frozen=True)
class Visitor:
    """The user of a page, for templates."""

    user: User

    @property
    def name(self) -> str:
        """Default author of changes. Users without a name may give another."""
        return self.user.resolve_author("")

    @property
    def role(self) -> str:
        """The user's role."""
        return str(self.user.role)

    @property
    def is_anonymous(self) -> bool:
        """Whether the user needs no token, and names the author of each change."""
        return self.user.via == "loopback"

    @property
    def has_session(self) -> bool:
        """Whether the user can log out."""
        return self.user.via == "session"

    def may(self, action: str) -> bool:
        """Return whether the user may do an action, and so sees its button."""
        return self.user.may(action)


def find_visitor(request: Request) -> Visitor | None:
    """Return the user of a page; None if the request is not authenticated."""
    user: User | None = getattr(request.state, "user", None)
    return None if user is None else Visitor(user)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The app context and the templates, which all pages share."""

    context: AppContext
    renderer: Renderer

    async def values(self, request: Request, page: str) -> dict[str, Any]:
        """Return the template values of every page."""
        namespace = ""
        with contextlib.suppress(EverlongError):  # A page that needs the server shows the error.
            namespace = (await self.context.client()).namespace
        return {
            "page": page,
            "who": find_visitor(request),
            "namespace": namespace,
            "waiting": await self.context.directory.pending(),
        }
