"""Create, change and remove pipeline files: checked before they are saved, written in one step, the last one kept.

Only with `--edit`, and only where the files are. What is written is YAML of the document as it was given: variables
(`${VAR}`) stay variables. Comments of a file that is changed here do not survive; the previous file has them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.config.load import load
from penstock.control.check.view import Found, by_level, verdict
from penstock.control.check.whole import check_pipeline
from penstock.control.spec import HIDDEN
from penstock.errors import CheckFailed
from penstock.server.fleet import Member
from penstock.server.problems import Refused
from penstock.server.service import Service


def create(service: Service, document: Mapping[str, Any]) -> Member:
    """Save a new pipeline in the server's folder and start it."""
    _require_edit(service)
    folder = service.fleet.folder
    if folder is None:
        raise Refused(409, "NO_FOLDER", "this server serves files, not a folder", "Start it with a folder")
    name = document.get("name")
    if not isinstance(name, str) or not name.isidentifier():
        raise Refused(422, "INVALID_REQUEST", "`name` is missing, or no name", "Small letters, digits and _")
    file = folder / f"{name}.yaml"
    if file.exists() or any(member.name == name for member in service.fleet.members()):
        raise Refused(409, "PIPELINE_ALREADY_EXISTS", f"there is a pipeline {name} already", "Give it another name")
    _write_checked(file, document)
    service.fleet.scan()
    return service.fleet.get(name)


def patch(service: Service, member: Member, changes: Mapping[str, Any]) -> Member:
    """Merge changes into a pipeline's file, and start it again with them."""
    _require_edit(service)
    if changes.get("name", member.name) != member.name:
        raise Refused(
            400,
            "PIPELINE_NAME_MISMATCH",
            f"this is pipeline {member.name}",
            "A renamed pipeline is a new one: create it",
        )
    written = yaml.safe_load(member.file.read_text())
    document = merged(written if isinstance(written, dict) else {}, changes)
    text, _ = checked_text(member.file, document)
    if member.pipeline is not None and yaml.safe_load(text) == written:
        return member
    return service.fleet.reload(member.name, lambda: _save(member.file, text))


def delete(service: Service, member: Member) -> None:
    """Stop a pipeline, and keep its file under another name."""
    _require_edit(service)
    service.fleet.forget(member.name, lambda: _put_aside(member.file))


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge as JSON Merge Patch (RFC 7396) does: objects key by key, everything else whole, null removes."""
    result = dict(document)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def checked_text(file: Path, document: Mapping[str, Any]) -> tuple[str, list[Found]]:
    """Return the YAML of a document, and what `penstock check` finds. CheckFailed when it could not run."""
    if HIDDEN in str(document):
        raise Refused(
            422, "SECRET_NOT_GIVEN", f"a value is {HIDDEN}, as secrets are shown", "Leave such keys out of the change"
        )
    text = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{file.stem}.", suffix=".check", dir=file.parent)
    trial = Path(name)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        found = check_pipeline(load(trial)).found
    finally:
        trial.unlink(missing_ok=True)
    errors = [one.finding for one in by_level(found) if one.finding.level == "error"]
    if errors:
        raise CheckFailed(f"{verdict(found)}: {errors[0].what}", errors[0].fix)
    return text, found


def _write_checked(file: Path, document: Mapping[str, Any]) -> None:
    text, _ = checked_text(file, document)
    _save(file, text)


def _save(file: Path, text: str) -> None:
    """Replace the file in one step; the previous one is kept beside it."""
    fresh = file.with_name(f".{file.name}.new")
    try:
        fresh.write_text(text)
        if file.exists():
            fresh.chmod(file.stat().st_mode)
            previous = _previous(file)
            previous.unlink(missing_ok=True)
            os.link(file, previous)
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise Refused(409, "NOT_WRITABLE", f"{file} cannot be written: {error.strerror}") from error


def _put_aside(file: Path) -> None:
    file.rename(_previous(file))


def _previous(file: Path) -> Path:
    return file.with_name(f"{file.name}.previous")


def _require_edit(service: Service) -> None:
    if not service.settings.edit:
        raise Refused(403, "READ_ONLY", "this server does not change pipeline files", "Start it with --edit")
