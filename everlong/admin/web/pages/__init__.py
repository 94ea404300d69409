"""The dashboard's pages. They show what the service says, and leave changes to the API."""

from everlong.admin.web.pages.errors import error_page
from everlong.admin.web.pages.router import pages_router

__all__ = ["error_page", "pages_router"]
