"""What is around every page: who looks, what waits, where they are."""

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
    """Somebody who looks at a page, as templates know them."""

    user: User

    @property
    def name(self) -> str:
        """Whom a change is journalled as, unless they say another name where they may."""
        return self.user.acts_as("")

    @property
    def role(self) -> str:
        """What they are here."""
        return str(self.user.role)

    @property
    def is_anonymous(self) -> bool:
        """Whether they were let in for being on this machine, and say themselves who they are."""
        return self.user.via == "loopback"

    @property
    def has_session(self) -> bool:
        """Whether they can log out."""
        return self.user.via == "session"

    def may(self, action: str) -> bool:
        """Tell whether a button is for them."""
        return self.user.may(action)


def visitor(request: Request) -> Visitor | None:
    """Return who looks, if somebody was let in."""
    user: User | None = getattr(request.state, "user", None)
    return None if user is None else Visitor(user)


@dataclasses.dataclass(frozen=True)
class Frame:
    """The context, and the templates."""

    context: AppContext
    renderer: Renderer

    async def values(self, request: Request, page: str) -> dict[str, Any]:
        """Return what every page shows."""
        namespace = ""
        with contextlib.suppress(EverlongError):  # The page itself says so, if it needs the server.
            namespace = (await self.context.client()).namespace
        return {
            "page": page,
            "who": visitor(request),
            "namespace": namespace,
            "waiting": await self.context.directory.pending(),
        }
