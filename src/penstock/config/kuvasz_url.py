"""Turn URLs of kuvasz-streamer into URLs of a pipeline file: without passwords, and such as libpq understands.

A part of a URL is written only if it is certain not to be a piece of a password. If that is in doubt, a variable stands
for the whole URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.config.source_url import checked_source_url

_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_HOSTS = re.compile(r"((\[[0-9a-fA-F:.]+\]|[^:\[\],]*)(:[0-9]*)?)(,(\[[0-9a-fA-F:.]+\]|[^:\[\],]*)(:[0-9]*)?)*")
_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True)
class Address:
    """A URL as the pipeline file has it, the variables in it with what they stand for, and the options left out."""

    text: str
    variables: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    whole: bool = False  # a variable stands for all of it


def address_of(url: str, prefix: str) -> Address:
    """Return the URL without its password. `prefix` begins the names of the variables."""
    if _VARIABLE.fullmatch(url):
        return Address(url, ((url[2:-1], "the URL, as before"),))
    given = _without_password(url, prefix)
    if given is None:
        name = f"{prefix}_URL"
        return Address(
            f"${{{name}}}", ((name, "the whole URL, postgresql://user:password@host:port/database"),), (), True
        )
    return given


def _without_password(url: str, prefix: str) -> Address | None:
    """Return None when it is not certain which part of the URL is the password, or when penstock would refuse it."""
    scheme, separator, rest = url.partition("://")
    address, question, query = rest.partition("?")
    authority, slash, database = address.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    doubtful = (
        not url.isprintable() or any(mark in url for mark in (" ", "#", '"')) or "@" in f"{login}{database}{query}"
    )
    if not separator or scheme not in ("postgresql", "postgres") or doubtful or not _HOSTS.fullmatch(hosts):
        return None
    variables: list[tuple[str, str]] = []

    def variable(value: str, key: str) -> str:
        if not _VARIABLE.fullmatch(value):
            value = f"${{{prefix}_{key.upper()}}}"
        variables.append((value[2:-1], f"the {key}, percent-encoded as in kuvasz-streamer's URL"))
        return value

    login = f"{user}:{variable(password, 'password')}" if password else user
    options, left_out = [], []
    for option in query.split("&") if question else []:
        key, equals, value = option.partition("=")
        if key in _SECRETS:
            options.append(f"{key}={variable(value, key)}")
        elif _is_known(option) and equals:
            options.append(option)
        elif option:
            left_out.append(key)
    text = f"{scheme}://{login}{at}{hosts}{slash}{database}" + ("?" + "&".join(options) if options else "")
    if "${" in _VARIABLE.sub("", text) or len(_VARIABLE.findall(text)) != len(variables) or not _is_accepted(text):
        return None
    return Address(text, tuple(variables), tuple(left_out))


def _is_known(option: str) -> bool:
    """Whether libpq has the option. `replication` is not for the file: penstock sets it where it streams."""
    try:
        return "replication" not in conninfo_to_dict(f"postgresql:///?{option}")
    except psycopg.ProgrammingError:
        return False


def _is_accepted(text: str) -> bool:
    try:
        checked_source_url(_VARIABLE.sub("x", text), Path.cwd())
    except ValueError:
        return False
    return True
