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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server import pages
from penstock.server.access import READING, Access, Needs
from penstock.server.limits import Limits, RateLimit
from penstock.server.problems import (
    Refused,
    answer,
    on_http,
    on_invalid,
    on_penstock_error,
    on_refused,
)
from penstock.server.routes import admin, discovery, messages, metrics, pipelines, probes, rows, schemas, tables
from penstock.server.service import Service
from penstock.server.tokens import Role

ROUTERS = (probes, pipelines, tables, messages, schemas, rows, discovery, admin, metrics)
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"),
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
    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(PenstockError, on_penstock_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, _on_unexpected)
    app.add_middleware(Access, service=service)
    rate = service.settings.rate
    app.add_middleware(Limits, most_bytes=service.settings.most_body_bytes, rate=RateLimit(rate, 2 * rate))
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
                message["headers"] = [*message.get("headers", []), *SECURITY_HEADERS]
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


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    LOG.error("request failed unexpectedly", path=request.url.path, exc_info=error)
    what = f"{type(error).__name__} while answering {request.method} {request.url.path}"
    return answer(500, "UNEXPECTED", what, "This is a bug: the server's log has the traceback; report it")


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
