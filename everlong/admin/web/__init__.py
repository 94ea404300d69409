"""What `everlong serve` serves: the dashboard, its JSON API, and the codec server."""

from everlong.admin.web.access import Access, User, open_access
from everlong.admin.web.app import create_admin_app
from everlong.admin.web.codec import check_exposure, create_app
from everlong.admin.web.desk import Desk

__all__ = [
    "Access",
    "Desk",
    "User",
    "check_exposure",
    "create_admin_app",
    "create_app",
    "open_access",
]
