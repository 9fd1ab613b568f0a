"""From a YAML file to a Pipeline: read, expand the environment, validate.

Every mistake is a ConfigError that names the file, the line, the key path, the value (unless it may be a secret) and
what is allowed. model.py says what is valid; this module knows YAML, the environment and the wording of errors.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.config.facts import FACT
from penstock.config.model import Pipeline
from penstock.errors import ConfigError
from penstock.processors.outbox import OUTBOX_NAME
from penstock.render.template import TEMPLATE_NAME

KeyPath = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)\}?")
_VARIABLE_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_TEMPLATES = frozenset({"topic", "stream", "subject", "key", "headers"})  # keys of a destination
_OUTBOX_TEMPLATES = frozenset({"topic", "default_topic", "key"})  # keys of a processor
_ANYTHING = re.compile(r".*", re.DOTALL)  # a script may have `${…}` of its own
_MAY_BE_SECRET = ("mask_salt", "url", "uri", "warehouse", "state", "catalog", "spark")
_SOLUTION = "Correct it and run `penstock check {file}`"


def load(path: Path) -> Pipeline:
    """Return the pipeline that the file describes."""
    file = path.expanduser().absolute()
    document = _Document(path, _read(path, file))
    try:
        return Pipeline.model_validate(document.value, context={"file": file, "folder": file.parent})
    except ValidationError as invalid:
        raise document.error_for(invalid) from None


def expand(text: str, environment: Mapping[str, str], *, kept: re.Pattern[str] | None = None) -> str:
    """`${VAR}` and `${VAR:-default}` replaced; `$${` stands for `${`.

    ValueError names what is unset or malformed. What `kept` matches stays as it is: it is filled in for each table
    (`${source.name}` in `set`) or each record.
    """

    def value(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        if kept is not None and kept.fullmatch(found[0]):
            return found[0]
        body = _VARIABLE_BODY.fullmatch(found["body"]) if found[0].endswith("}") else None
        if body is None:
            raise ValueError("has a malformed variable; write ${NAME} or ${NAME:-default}, and $${ for a literal ${")
        name, default = body["name"], body["default"]
        # As in a shell, `:-` also stands in for a variable that is empty.
        known = environment.get(name) or default if default is not None else environment.get(name)
        if known is None:
            raise ValueError(f"needs the environment variable {name}, which is not set")
        return known

    return _VARIABLE.sub(value, text)


def _kept_in(at: KeyPath) -> re.Pattern[str] | None:
    """Return the pattern of what is no variable of the environment at this key; None when everything is one."""
    if "processors" in at:
        return _ANYTHING if at[-1] == "inline" else OUTBOX_NAME if at[-1] in _OUTBOX_TEMPLATES else None
    if "set" in at:
        return FACT
    return TEMPLATE_NAME if at[:1] == ("destinations",) and _TEMPLATES.intersection(map(str, at)) else None


def _read(path: Path, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", _nearest_file(file)) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder", "Name the pipeline's YAML file in it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", "Save the pipeline file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "Check the file's permissions") from None


def _nearest_file(file: Path) -> str:
    there = sorted(p.name for p in file.parent.glob("*.y*ml")) if file.parent.is_dir() else []
    near = difflib.get_close_matches(file.name, there, n=1, cutoff=0.5) or there[:1]
    return f"Did you mean {near[0]}?" if near else "docs/config.md has one to start from"


class _Document:
    """The file's values, with the line of each key path."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines: dict[KeyPath, int] = {}
        self.expanded: set[KeyPath] = set()
        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is None:
                raise ConfigError(f"{path} is empty", "docs/config.md has a pipeline to start from")
            self.value = self._build(loader, node, ())
        except yaml.YAMLError as error:
            raise self._bad_yaml(error) from None

    def error(self, at: KeyPath, problem: str, value: str = "") -> ConfigError:
        shown = f" is {value}, but" if value else ""
        return ConfigError(f"{self._where(at)}{shown} {problem}", _SOLUTION.format(file=self.path))

    def error_for(self, invalid: ValidationError) -> ConfigError:
        details = invalid.errors(include_url=False)
        first = details[0]
        at = self._in_file(tuple(first["loc"]))
        if first["type"] == "unknown_key":
            at = (*at, first["ctx"]["key"])
            problem, value = f"is an {first['msg']}", ""
        elif first["type"] == "misplaced":
            at = (*at, *first["ctx"]["at"])
            problem, value = first["msg"], ""
        elif first["type"] == "unfit_key":
            at = (*at, first["ctx"]["key"])
            problem, value = first["msg"], self._shown(at, first)
        else:
            if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
                at = (*at, "type")
            problem, value = _problem(first), self._shown(at, first)
        more = f" ({len(details) - 1} more to correct)" if len(details) > 1 else ""
        return self.error(at, problem + more, value)

    def _in_file(self, at: KeyPath) -> KeyPath:
        """Return a key path as the file has it: pydantic puts the type behind a source's key or an entry's number."""
        found: KeyPath = ()
        for part in at:
            of_source = found == ("source",) or (len(found) == 2 and found[0] == "sources")
            type = self._value((*found, "type")) if found and (of_source or isinstance(found[-1], int)) else None
            if part != (type or ("postgres" if of_source else None)):
                found = (*found, part)
        return found

    def _where(self, at: KeyPath) -> str:
        known = at
        while known and known not in self.lines:
            known = known[:-1]
        line = f":{self.lines[known]}" if known in self.lines else ""
        return f"{self.path}{line}: {key_text(at)}" if at else f"{self.path}{line}: the file"

    def _shown(self, at: KeyPath, details: ErrorDetails) -> str:
        """Return the value as written, unless it may be a secret or is more than a plain value."""
        value = self._value(at)
        secret = any(part in _MAY_BE_SECRET for part in at) or at in self.expanded
        if secret or details["type"] == "missing" or not isinstance(value, str | int | float) or "://" in str(value):
            return ""
        return repr(value) if isinstance(value, str) else str(value)

    def _value(self, at: KeyPath) -> object:
        value: Any = self.value
        for part in at:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _build(self, loader: yaml.SafeLoader, node: yaml.Node, at: KeyPath) -> object:
        self.lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(loader, item, (*at, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, at)
        value = loader.construct_object(node)
        if not isinstance(value, str):
            return value
        try:
            expanded = expand(value, os.environ, kept=_kept_in(at))
        except ValueError as error:
            raise self.error(at, str(error)) from None
        if expanded != value:
            self.expanded.add(at)
        return expanded

    def _mapping(self, loader: yaml.SafeLoader, node: yaml.MappingNode, at: KeyPath) -> dict[str, object]:
        loader.flatten_mapping(node)
        built: dict[str, object] = {}
        for key_node, value_node in node.value:
            key: Hashable = loader.construct_object(key_node)
            name = key if isinstance(key, str) else str(key_node.value)
            here = (*at, name)
            self.lines[here] = key_node.start_mark.line + 1
            if name in built:
                raise self.error(here, "is defined twice")
            built[name] = self._build(loader, value_node, here)
        return built

    def _bad_yaml(self, error: yaml.YAMLError) -> ConfigError:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        wildcard = "'%'" in problem or "alias" in problem
        hint = 'Put patterns that begin with % or * in quotes: "%.orders"' if wildcard else "Correct the file's YAML"
        return ConfigError(f"{self.path}{line} is not valid YAML: {problem}", hint)


def key_text(at: KeyPath) -> str:
    """`tables[0].match`."""
    text = ""
    for part in at:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _problem(details: ErrorDetails) -> str:
    """Return pydantic's finding in our words."""
    context = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return "is missing"
        case "union_tag_not_found":
            return "is missing"
        case "union_tag_invalid":
            return f"must be {' or '.join(context['expected_tags'].split(', '))}"
        case "literal_error" | "enum":
            return f"must be {context['expected']}"
        case "value_error":
            return str(context["error"])
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}"
        case "string_type":
            return "must be text"
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number"
        case "list_type":
            return "must be a list (lines that begin with -)"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a mapping (lines of `key: value`)"
        case "too_short":
            return f"must have at least {context['min_length']} entry"
        case "string_too_long":
            return f"must be at most {context['max_length']} characters long"
        case "string_too_short":
            return "must not be empty"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
    return details["msg"]
