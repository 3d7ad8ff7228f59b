"""The server: one socket on this machine, a token, and the browser."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pams_mil import atomic
from pams_mil.errors import ConfigError
from pams_mil.report.live import VIEW_PORT
from pams_mil.view.app import build_app
from pams_mil.view.guard import Guard, own_hosts
from pams_mil.view.session import Session

LOOPBACK = "127.0.0.1"
MOST_SILENT = 64
SILENT_S = 10.0


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Connection(H11Protocol):
    """A connection that must send its first request soon: silent ones are few, and the oldest goes first.

    Whoever is refused is disconnected by the guard, so strangers cannot hold connections that the owner needs.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, and drop the oldest silent one where there are too many."""
        super().connection_made(transport)
        self.limit = self.loop.call_later(SILENT_S, transport.abort)
        silent = [one for one in self.connections if isinstance(one, Connection) and one.cycle is None]
        if len(silent) > MOST_SILENT:
            min(silent, key=lambda one: one.limit.when()).transport.abort()

    def handle_events(self) -> None:
        """Pass on what came; a request that is complete up to its body ends the silence."""
        super().handle_events()
        if self.cycle is not None:
            self.limit.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.limit.cancel()
        super().connection_lost(exc)


@dataclass
class Server:
    """A session behind an open socket; `run` serves until it is interrupted."""

    session: Session
    socket: socket.socket
    host: str
    port: int
    token: str
    app: Guard
    opener: tempfile.TemporaryDirectory[str] | None = None

    @property
    def address(self) -> str:
        """Where to open the viewer, with the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/?token={self.token}"

    def uvicorn(self) -> uvicorn.Server:
        """The HTTP server: no access log, for addresses name patients' slides; no name of the software."""
        config = uvicorn.Config(
            self.app,
            http=Connection,
            lifespan="off",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            access_log=False,
            log_level="error",
            server_header=False,
        )
        return uvicorn.Server(config)

    def open_browser(self) -> None:
        """Open the viewer through a page that only this user can read: other users see the arguments of programs."""
        self.opener = tempfile.TemporaryDirectory(prefix="pams-view-")
        page = Path(self.opener.name) / "open.html"
        atomic.write_text(page, f"<meta http-equiv=refresh content='0;url={self.address}'>\n", private=True)
        webbrowser.open(page.as_uri())

    def run(self) -> None:
        """Serve until interrupted."""
        try:
            self.uvicorn().run(sockets=[self.socket])
        finally:
            self.close()

    def close(self) -> None:
        """Give the socket, threads, slides and the opening page back."""
        if self.opener is not None:
            self.opener.cleanup()
        self.socket.close()
        self.app.close()


def open_server(
    session: Session, *, host: str = LOOPBACK, port: int | None = None, allow_network: bool = False
) -> Server:
    """Bind the socket and make the token; port 0 takes any free one, None the one that links of reports lead to."""
    if not is_loopback(host) and not allow_network:
        raise ConfigError(
            f"--host {host} would let other machines reach the viewer. There is no encryption: the token and every "
            "picture would cross the network readable. Use 'ssh -L' to this machine instead, or insist with "
            "--allow-network."
        )
    try:
        listener = _listen(host, VIEW_PORT if port is None else port)
    except ConfigError:
        if port is not None:
            raise
        listener = _listen(host, 0)  # another viewer has the port
    chosen = int(listener.getsockname()[1])
    token = secrets.token_urlsafe(32)
    # Others reach the machine by its name, so that is one of ours then.
    more = () if is_loopback(host) else (socket.gethostname(),)
    app = build_app(session, token=token, hosts=own_hosts(host, chosen, more), port=chosen)
    return Server(session, listener, host, chosen, token, app)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol: only then does asyncio send small answers at once (TCP_NODELAY).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A port that was just given back can be taken again at once.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Port {port} on {host} cannot be used: {error.strerror or error}. Choose another --port."
        ) from error
    return listener
