"""The web page: rendered here, with small scripts that speak to the same routes as every other client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, select_autoescape

from penstock.server.access import COOKIE, cookie_of, holder_of
from penstock.server.service import ServiceDep
from penstock.server.tokens import SESSION_SECONDS

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
TEMPLATES = Environment(loader=FileSystemLoader(FOLDER / "templates"), autoescape=select_autoescape(default=True))
router = APIRouter()


@router.get("/", response_class=HTMLResponse)
def root() -> Response:
    return RedirectResponse("/ui", 303)


@router.get("/signin", response_class=HTMLResponse)
def signin_page(request: Request, service: ServiceDep) -> Response:
    if holder_of(request) is not None:
        return RedirectResponse("/ui", 303)
    return _page("signin.html", request, service)


@router.post("/signin", response_class=HTMLResponse)
def signin(request: Request, service: ServiceDep, token: Annotated[str, Form(max_length=200)]) -> Response:
    """Take a token and give a cookie, which expires, and which scripts cannot read."""
    holder = service.tokens.holder(token.strip())
    if holder is None:
        return _page("signin.html", request, service, status=401, wrong=True)
    answer = RedirectResponse("/ui", 303)
    answer.set_cookie(
        COOKIE,
        service.tokens.session(holder),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=service.settings.secure,
    )
    return answer


@router.post("/signout")
def signout() -> Response:
    answer = RedirectResponse("/signin", 303)
    answer.delete_cookie(COOKIE)
    return answer


def _page(template: str, request: Request, service: ServiceDep, status: int = 200, **values: Any) -> HTMLResponse:
    cookie = cookie_of(request.headers)
    holder = holder_of(request)
    shown = {
        "holder": holder,
        "page_token": service.tokens.page_token(cookie) if cookie and holder is not None else "",
        "edit": service.settings.edit,
        "path": request.url.path,
        **values,
    }
    return HTMLResponse(TEMPLATES.get_template(template).render(**shown), status)
