"""The admin server of `everlong serve`: the dashboard, its JSON API, and the codec server."""

from everlong.admin.web.app import create_admin_app
from everlong.admin.web.auth import Access, User, load_access
from everlong.admin.web.codec_server import check_exposure, create_codec_app
from everlong.admin.web.context import AppContext

__all__ = [
    "Access",
    "AppContext",
    "User",
    "check_exposure",
    "create_admin_app",
    "create_codec_app",
    "load_access",
]
