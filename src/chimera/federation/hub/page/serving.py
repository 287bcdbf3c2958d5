"""The server of the page, in a thread of the hub's process. It reads the file of the hub, and nothing else of the hub."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from chimera.core.address import host_in_url, is_loopback
from chimera.core.errors import ConfigurationError
from chimera.core.private import make_own_folder, write
from chimera.federation.hub.page import data
from chimera.federation.hub.state import State
from chimera.web.app import create_app, listen, serve
from chimera.web.background import in_thread
from chimera.web.body import answer
from chimera.web.folder import Access
from chimera.web.page.routes import page_route
from chimera.web.routing import documented, plain_router

TOKEN = "page.token"  # noqa: S105 - the name of a file
_END_S = 5.0


def place_of(text: str) -> tuple[str, int]:
    """Return host and port of an option ``[HOST:]PORT``.

    Raises
    ------
    ConfigurationError : it has another form.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65_535:
        raise ConfigurationError(f"--page {text!r}: give PORT or HOST:PORT, with a port up to 65535")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


class PageServer:
    """Serves the page of a hub. Its data need the token in the file ``page.token`` of the hub's folder, also on loopback.

    Parameters
    ----------
    folder : folder of the hub.
    host, port : where to listen. Beyond loopback it uses TLS, with the certificate of the hub.

    Raises
    ------
    ConfigurationError : the address cannot be used, or the token cannot be written.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self._folder, self._host = folder, host
        self.token = _token(folder)
        self._listener = listen(host, port)
        self._port = self._listener.getsockname()[1]
        self._thread: threading.Thread | None = None
        self._app: FastAPI | None = None

    @property
    def token_file(self) -> Path:
        """The file with the token."""
        return self._folder / TOKEN

    @property
    def address(self) -> str:
        """The address of the page, without the token."""
        secure = "" if is_loopback(self._host) else "s"
        return f"http{secure}://{host_in_url(self._host)}:{self._port}/"

    def start(self, certificate: Path, key: Path) -> None:
        """Begin to serve, in another thread.

        Parameters
        ----------
        certificate, key : files of the hub's server.
        """
        secure = not is_loopback(self._host)
        access = Access(self.token, tls_cert=certificate if secure else None, tls_key=key if secure else None)
        self._app = create_page_app(self._folder, access)
        options: dict[str, Any] = {
            "host": self._host, "port": self._port, "settings": access, "listener": self._listener, "logs": False,
        }  # fmt: skip
        self._thread = threading.Thread(
            target=serve, args=(self._app,), kwargs=options, name="chimera-page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        if self._thread is None or self._app is None:
            self._listener.close()
            return
        getattr(self._app.state, "stop", bool)()
        self._thread.join(_END_S)


def create_page_app(folder: Path, access: Access) -> FastAPI:
    """Return the application of the page of the hub in a folder."""
    state = State(folder)
    router = plain_router(prefix="/v1/hub", tags=["page"])

    @router.get("/page", **documented("The nodes and runs of the hub.", answer={"type": "object"}, errors=(503,)))
    async def page(request: Request) -> Response:
        return answer(request, await in_thread(data.page, state))

    return create_app(
        title="chimera hub",
        settings=access,
        routers=[router],
        public=[page_route("chimera.federation.hub.page", "Chimera hub")],
        about={"kind": "hub"},
    )


def _token(folder: Path) -> str:
    """Return the token of the page, which is made once."""
    file = folder / TOKEN
    try:
        make_own_folder(folder)
        if not file.exists():
            write(file, secrets.token_urlsafe(32).encode())
        return file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the token of the page {file} cannot be used: {error}") from error
