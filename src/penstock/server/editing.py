"""Create, change and remove pipeline files: checked before they are saved, written in one step, the last one kept.

Only with `--edit`, and only where the files are. What is written is YAML of the document as it was given: variables
(`${VAR}`) stay variables. Comments of a file that is changed here do not survive; the previous file has them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.config.load import load
from penstock.control.check.view import by_level, verdict
from penstock.control.check.whole import check_pipeline
from penstock.control.spec import HIDDEN
from penstock.errors import CheckFailed, ConfigError
from penstock.server.documents import as_file, yaml_of
from penstock.server.fleet import Member
from penstock.server.problems import Refused
from penstock.server.service import Service

MOST_NAME = 100  # characters: it becomes a file's


def create(service: Service, document: Mapping[str, Any]) -> Member:
    """Save a new pipeline in the server's folder and start it."""
    _require_edit(service)
    folder = service.fleet.folder
    if folder is None:
        raise Refused(409, "NO_FOLDER", "this server serves files, not a folder", "Start it with a folder")
    name = document.get("name")
    if not isinstance(name, str) or not name.isidentifier() or len(name) > MOST_NAME:
        raise Refused(422, "INVALID_REQUEST", "`name` is missing, or no name", "Small letters, digits and _")
    file = folder / f"{name}.yaml"
    with service.fleet.one_edit:
        if file.exists() or any(member.name == name for member in service.fleet.members()):
            raise Refused(409, "PIPELINE_ALREADY_EXISTS", f"there is a pipeline {name} already", "Give it another name")
        _save(file, checked_text(file, document))
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
    with service.fleet.one_edit:
        before = written(member)
        text = checked_text(member.file, merged(before, changes))
        if member.pipeline is not None and yaml.safe_load(text) == before:
            return member
        return service.fleet.reload(member.name, lambda: _save(member.file, text))


def delete(service: Service, member: Member) -> None:
    """Stop a pipeline, and keep its file under another name."""
    _require_edit(service)
    with service.fleet.one_edit:
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


def checked_text(file: Path, document: Mapping[str, Any]) -> str:
    """Return the YAML of a document. CheckFailed when `penstock check` finds that it could not run."""
    if HIDDEN in str(document):
        raise Refused(
            422, "SECRET_NOT_GIVEN", f"a value is {HIDDEN}, as secrets are shown", "Leave such keys out of the change"
        )
    text = yaml_of(document)
    try:
        with as_file(text, file.parent) as trial:
            found = check_pipeline(load(trial)).found
    except OSError as error:
        raise _not_writable(file, error) from error
    errors = [one.finding for one in by_level(found) if one.finding.level == "error"]
    if errors:
        raise CheckFailed(f"{verdict(found)}: {errors[0].what}", errors[0].fix)
    return text


def _save(file: Path, text: str) -> None:
    """Replace the file in one step; the previous one is kept beside it.

    A new file is its owner's alone: it may have passwords in it.
    """
    fresh, kept = (file.with_name(f".{file.name}.{ending}") for ending in ("new", "kept"))
    try:
        for leftover in (fresh, kept):
            leftover.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            fresh.chmod(stat.S_IMODE(file.stat().st_mode))
            os.link(file, kept)
            kept.replace(_previous(file))
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise _not_writable(file, error) from error


def _not_writable(file: Path, error: OSError) -> Refused:
    return Refused(
        409, "NOT_WRITABLE", f"{file} cannot be written: {error.strerror}", "Let the server write to its folder"
    )


def written(member: Member) -> dict[str, Any]:
    """Return what a pipeline's file says now, as it is written. ConfigError when it cannot be read."""
    try:
        found = yaml.safe_load(member.file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{member.file} cannot be read: it is away, or no YAML", "Correct the file") from error
    return found if isinstance(found, dict) else {}


def _put_aside(file: Path) -> None:
    try:
        file.rename(_previous(file))
    except OSError as error:
        raise _not_writable(file, error) from error


def _previous(file: Path) -> Path:
    return file.with_name(f"{file.name}.previous")


def _require_edit(service: Service) -> None:
    if not service.settings.edit:
        raise Refused(403, "READ_ONLY", "this server does not change pipeline files", "Start it with --edit")
