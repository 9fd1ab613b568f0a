"""Who may do what: every request shows a token, or the cookie of somebody who did; each route names the role it needs.

The check comes before anything reads the request. A cookie alone changes nothing: with it must come a header that only
our own page can know. Without tokens (`--no-auth`, on loopback only) the request must name this machine as its host
and must not come from another site's page.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import UsageError
from penstock.server.problems import Refused, answer
from penstock.server.service import Service
from penstock.server.tokens import Holder, Role

COOKIE = "penstock_session"
PAGE_HEADER = "x-penstock-page"
OPEN = ("/health", "/ready", "/signin")
OPEN_FOLDERS = ("/static/",)
READING = ("GET", "HEAD", "OPTIONS")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
ANYBODY = Holder("anybody", Role.ADMIN)


class Access:
    """Middleware: finds out who asks, and turns away who may not."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found = self._judge(scope)
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        scope.setdefault("state", {})["holder"] = found
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> Holder | Response | None:
        path, method, headers = scope["path"], scope["method"], Headers(scope=scope)
        is_open = path in OPEN or path.startswith(OPEN_FOLDERS)
        if self._service.settings.no_auth:
            return _foreign(headers) or ANYBODY
        if not is_open and path.startswith("/signout"):
            is_open = True
        try:
            found = self._holder(scope, headers)
        except UsageError as error:
            return answer(503, "TOKENS_UNREADABLE", error.what, error.solution)
        if isinstance(found, Response) and not is_open:
            return found
        if isinstance(found, Holder):
            return found
        if is_open:
            return None
        if method == "GET" and (path == "/" or path.startswith("/ui")):
            return RedirectResponse("/signin", 303)
        return answer(
            401, "UNAUTHORIZED", "this needs a token", "Send `Authorization: Bearer TOKEN`; see `penstock tokens`"
        )

    def _holder(self, scope: Scope, headers: Headers) -> Holder | Response | None:
        tokens = self._service.tokens
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            found = tokens.holder(given.strip())
            return found or self._wrong_token(scope)
        cookie = cookie_of(headers)
        found = tokens.session_holder(cookie) if cookie else None
        if found is None or scope["method"] in READING:
            return found
        if not tokens.is_page_token(cookie, headers.get(PAGE_HEADER, "")):
            return answer(
                403, "PAGE_TOKEN_MISSING", "a cookie alone changes nothing", f"Send the page's {PAGE_HEADER} header"
            )
        return found

    def _wrong_token(self, scope: Scope) -> Response:
        client = scope.get("client")
        if not self._service.wrong_tokens.take(client[0] if client else ""):
            return answer(429, "TOO_MANY_REQUESTS", "too many wrong tokens from this address", "Wait a few seconds")
        return answer(401, "UNAUTHORIZED", "this token is not known here", "Make one with `penstock tokens add`")


def cookie_of(headers: Headers) -> str:
    """Return the session's cookie, or ""."""
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def _foreign(headers: Headers) -> Response | None:
    """Refuse what another site's page makes a browser send: by a name that it has for this machine, or from there."""
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        asked_by = host if origin is None else urlsplit(origin).netloc
    except ValueError:
        return answer(403, "FOREIGN_HOST", "the request's Host or Origin is no address", "Ask as 127.0.0.1:PORT")
    if name not in LOOPBACK:
        return answer(403, "FOREIGN_HOST", f"without tokens this server answers on loopback only, not as {name}")
    if asked_by != host:
        return answer(403, "FOREIGN_ORIGIN", "another site's page may not ask this server for anything")
    return None


def holder_of(request: Request) -> Holder | None:
    found = getattr(request.state, "holder", None)
    return found if isinstance(found, Holder) else None


class Needs:
    """A dependency: the request's holder has at least this role."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, request: Request) -> Holder:
        holder = holder_of(request)
        if holder is None:
            raise Refused(401, "UNAUTHORIZED", "this needs a token")
        if not holder.role.allows(self.role):
            raise Refused(
                403,
                "FORBIDDEN",
                f"this needs the role {self.role}; token {holder.name} is {holder.role}",
                f"penstock tokens add NAME --role {self.role}",
            )
        return holder


Viewer = Annotated[Holder, Depends(Needs(Role.VIEWER))]
Operator = Annotated[Holder, Depends(Needs(Role.OPERATOR))]
Admin = Annotated[Holder, Depends(Needs(Role.ADMIN))]
