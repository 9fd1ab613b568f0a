"""The server as one ASGI application: limits first, then who asks, then the routes. Every error has the same shape."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server import pages
from penstock.server.access import READING, Access, Needs
from penstock.server.limits import BodyLimit, Limits, RateLimit
from penstock.server.problems import (
    Problem,
    Refused,
    answer,
    of_http,
    of_invalid,
    of_penstock,
    of_refused,
)
from penstock.server.routes import admin, discovery, messages, metrics, pipelines, probes, rows, schemas, tables
from penstock.server.service import Service
from penstock.server.tokens import Role

ROUTERS = (probes, pipelines, tables, messages, schemas, rows, discovery, admin, metrics)
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
LOG = structlog.get_logger("server")


def make_app(service: Service) -> FastAPI:
    """Build the application. Whoever calls this starts and closes the fleet."""
    app = FastAPI(
        title="penstock",
        version=importlib.metadata.version("penstock"),
        description="Operate penstock's pipelines. Every error is `{code, message, solution}`.",
        docs_url=None,  # Swagger's page would load its scripts from elsewhere
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    for module in ROUTERS:
        app.include_router(module.router)
    app.include_router(pages.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    for kind in (Refused, PenstockError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(Exception, _on_unexpected)
    settings = service.settings
    app.add_middleware(BodyLimit, most_bytes=settings.most_body_bytes)
    app.add_middleware(Access, service=service)
    app.add_middleware(Limits, most_bytes=settings.most_body_bytes, rate=RateLimit(settings.rate, 2 * settings.rate))
    app.add_middleware(_Outermost)
    _describe_tokens(app)
    return app


class _Outermost:
    """Middleware: headers that keep browsers careful, and a line in the log for everything that changes something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.get("headers", [])
                kept = () if any(name == b"cache-control" for name, _ in given) else _kept_by_browsers(scope["path"])
                message["headers"] = [*given, *SECURITY_HEADERS, *kept]
                if scope["method"] not in READING:
                    holder = scope.get("state", {}).get("holder")
                    LOG.info(
                        "request",
                        method=scope["method"],
                        path=scope["path"],
                        status=message["status"],
                        by=holder.name if holder is not None else None,
                    )
            await send(message)

        await self._app(scope, receive, with_headers)


def _kept_by_browsers(path: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return what a browser may keep: scripts and styles, as long as they are the same, and nothing with rows in it."""
    return ((b"cache-control", b"no-cache" if path.startswith("/static/") else b"no-store"),)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, Refused):
        return _as_asked(request, of_refused(error))
    if isinstance(error, PenstockError):
        return _as_asked(request, of_penstock(request, error))
    if isinstance(error, RequestValidationError):
        return _as_asked(request, of_invalid(error))
    assert isinstance(error, HTTPException)
    return _as_asked(request, of_http(error))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    LOG.error("request failed unexpectedly", path=request.url.path, exc_info=error)
    what = f"{type(error).__name__} while answering {request.method} {request.url.path}"
    solution = "This is a bug: the server's log has the traceback; report it"
    return _as_asked(request, answer(500, "UNEXPECTED", what, solution))


def _as_asked(request: Request, found: JSONResponse) -> Response:
    """Answer an error with a page for browsers, and with an object for everybody else."""
    if not (request.method == "GET" and request.url.path.startswith("/ui")):
        return found
    return pages.error_page(request, found.status_code, Problem.model_validate_json(bytes(found.body)))


def needed_roles() -> dict[tuple[str, str], Role]:
    """Return the role that each route asks for, by path and method; the probes ask for none."""
    found: dict[tuple[str, str], Role] = {}
    for module in ROUTERS:
        for route in module.router.routes:
            assert isinstance(route, APIRoute)
            needed = [one.call.role for one in route.dependant.dependencies if isinstance(one.call, Needs)]
            found |= {(route.path, method): role for method in route.methods or () for role in needed}
    return found


def _describe_tokens(app: FastAPI) -> None:
    """Say in the OpenAPI description that everything but the probes takes a token."""
    make = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = make()
            found.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            roles = needed_roles()
            for path, methods in found["paths"].items():
                for method, operation in methods.items():
                    role = roles.get((path, method.upper()))
                    operation["security"] = [] if role is None else [{"token": []}]
                    if role is not None:
                        operation["x-role"] = role.value
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
