"""The page `/api/docs`: routes and models of the JSON API, from the server's own OpenAPI document."""

from fastapi import APIRouter, Request, Response

from everlong.admin.web.openapi import describe_api
from everlong.admin.web.pages.layout import Layout


def create_router(layout: Layout) -> APIRouter:
    """Return the route of the page."""
    router = APIRouter()

    @router.get("/api/docs")
    async def api_docs(request: Request) -> Response:
        values = await layout.build_values(request, "api")
        # The application builds its document once, and keeps it.
        values["api"] = describe_api(request.app.openapi())
        return layout.renderer.render_page("api_docs.html", values)

    return router
