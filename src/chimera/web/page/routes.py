"""The route of a page, for servers whose applications `chimera.web.app.create_app` makes."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from chimera.web.page.document import document
from chimera.web.routing import plain_router


def page_route(package: str, title: str, *, path: str = "/", shared: Sequence[str] = ("base.js",)) -> APIRouter:
    """Return the route of the page of a package, without data and token; its ``page.js`` requests data with the token.

    Parameters
    ----------
    package, title, shared : as for `document`.
    path : one of `chimera.web.middleware.OPEN_PATHS`.
    """
    page = document(package, title, scripts=("page.js",), shared=shared)
    router = plain_router()

    @router.get(path, include_in_schema=False)
    async def bare(_: Request) -> Response:
        return Response(page.content, media_type="text/html", headers={"Content-Security-Policy": page.policy})

    return router
