"""Who may talk to the viewer: only the browser that was opened with the token, and only its own page.

| threat | answer |
|---|---|
| another user of the machine or program | a random token that works once, then a cookie that scripts cannot read |
| a web page whose host name is made to point here (DNS rebinding) | the Host header must be one of ours |
| any other web page, also one on another port of this machine | requests that a foreign page made are refused |
| a foreign page posting a form | a POST must be JSON, carry our own header, and come from our own page |
| a link from a page on disk | `/open`, the same for everybody, whose script goes on where there is a cookie |
| injected scripts, framing, sniffing, leaking addresses | headers on every answer |
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_HEADER = "x-pams-view"
MOST_BODY = 64 << 10
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CLOSED = (
    "<!doctype html><meta charset=utf-8><title>PAMS view</title><p>This viewer opens with the address that "
    "<code>pams view</code> printed, with its token. That address works once, in one browser; for another "
    "browser start <code>pams view</code> again.</p>"
)
# A page that goes on by itself: after a redirect, a browser that came from elsewhere would not send a strict cookie.
_OPENED = (
    "<!doctype html><meta charset=utf-8><title>PAMS view</title><link rel=icon href='data:,'>"
    "<meta http-equiv=refresh content='0;url=/'>"
)
# Links of pages on disk lead here. The browser sends a strict cookie with nothing that another page asks for, but with
# what this page asks for: its script is answered only in the browser that was opened with the token, and goes on.
_ARRIVED = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>PAMS view</title><link rel=icon href='data:,'>"
    "<script src=/static/arrive.js></script><p>This link opens a slide in the browser that <code>pams view</code> "
    "opened.</p></html>"
)


def own_hosts(host: str, port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """The Host headers that are ours: the loopback names with the port, and the host that was asked for.

    >>> sorted(own_hosts("127.0.0.1", 8000))
    ['127.0.0.1:8000', '[::1]:8000', 'localhost:8000']
    """
    names = {"127.0.0.1", "localhost", "[::1]", *more}
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104  compared, not bound to
        names.add(f"[{host}]" if ":" in host else host)
    return frozenset(f"{name}:{port}".lower() for name in names)


class Guard:
    """Stands before every route; nothing behind it sees a request that it refused."""

    def __init__(
        self, app: ASGIApp, *, token: str, hosts: frozenset[str], port: int, close: Callable[[], None] = lambda: None
    ) -> None:
        self.app, self.hosts, self.close = app, hosts, close
        self._token: str | None = token
        self.secret = secrets.token_urlsafe(32)
        self.cookie = f"pams_view_{port}"  # cookies know no ports; two viewers must not share one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, exchange the token for a cookie, or pass the request on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets here: the server answers 403 by itself

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self.answer(scope)
        if answer is not None and answer.status_code >= 400:
            answer.headers["Connection"] = "close"  # who is refused does not keep a connection
        await (answer or self.app)(scope, receive, with_headers)

    def answer(self, scope: Scope) -> Response | None:
        """The answer for whoever may not pass; None for whoever may."""
        headers = Headers(scope=scope)
        # Two Host headers, or none, are refused too.
        if headers.getlist("host") != [headers.get("host", "")] or headers["host"].lower() not in self.hosts:
            return PlainTextResponse("This host name does not belong to the viewer.", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Only GET and POST are answered.", 405)
        # The token is taken at "/" alone, and going on to "/" takes it out of the address bar.
        if scope["path"] == "/open" and scope["method"] == "GET":
            return HTMLResponse(_ARRIVED)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        opens = token and scope["path"] == "/" and scope["method"] == "GET"
        if not self._has_cookie(headers):
            return self._exchange(token) if opens else HTMLResponse(_CLOSED, 403)
        if opens:
            return HTMLResponse(_OPENED)
        if _is_foreign(headers, navigates=scope["method"] == "GET" and scope["path"] == "/"):
            return PlainTextResponse("Another web page asked for this; it is not answered.", 403)
        return _refused_post(headers, self.hosts) if scope["method"] == "POST" else None

    def _exchange(self, token: str) -> Response:
        # Compared in constant time: how long it takes tells nothing about the token.
        if self._token is None or not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return HTMLResponse(_CLOSED, 403)
        self._token = None  # it may linger in a history or a terminal; from now on it opens nothing
        answer = HTMLResponse(_OPENED)
        # No "secure": the viewer speaks plain HTTP, on this machine.
        answer.set_cookie(self.cookie, self.secret, path="/", httponly=True, samesite="strict")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        for line in headers.getlist("cookie"):
            try:
                cookie = SimpleCookie(line).get(self.cookie)
            except CookieError:
                continue
            if cookie is not None and hmac.compare_digest(cookie.value.encode(), self.secret.encode()):
                return True
        return False


def _is_foreign(headers: Headers, *, navigates: bool) -> bool:
    """Whether a page of another origin made the request; browsers say so in a header no page can forge.

    "same-site" is foreign too: another port of this machine belongs to the same site, but to somebody else.
    """
    site = headers.get("sec-fetch-site", "none")
    if site in ("same-origin", "none"):
        return False
    return not (
        navigates and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )


def _refused_post(headers: Headers, hosts: frozenset[str]) -> Response | None:
    origin = headers.get("origin", "")
    same_origin = headers.get("sec-fetch-site") == "same-origin"
    if not same_origin and origin.removeprefix("http://").lower() not in hosts:
        return PlainTextResponse("A change must come from the viewer's own page.", 403)
    if headers.get(OWN_HEADER) != "1":
        return PlainTextResponse("The viewer's own header is missing.", 403)
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return PlainTextResponse("Changes are sent as JSON.", 415)
    # Chunked bodies, which do not say how long they are, are refused with this.
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= MOST_BODY):
        return PlainTextResponse(f"Changes are at most {MOST_BODY} bytes long, and say how long.", 413)
    return None
