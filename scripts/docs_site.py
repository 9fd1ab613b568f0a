"""Hooks of mkdocs.yml: take what the pages link outside docs/ into the site, and lead the links there.

On GitHub, and in an editor, the links of docs/ and of the pages beside it work as they stand. In the site the pages
beside docs/ are in `project/`, and source files that a page links to are there as text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BESIDE = {name: f"project/{name.lower()}" for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
NUMBERED = re.compile(r"\d+\. ")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Any, config: Any) -> Any:
    for name, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    for name in _linked_sources():
        files.append(File.generated(config, _place(name), content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links that are right in the project to where their targets are in the site."""
    own = page.file.src_uri
    project = next((name for name, place in BESIDE.items() if place == own), f"docs/{own}")

    def moved(link: re.Match[str]) -> str:
        target, _, anchor = link[2].partition("#")
        if "://" in target or not target:
            return link[0]
        there = _place(posixpath.normpath(posixpath.join(posixpath.dirname(project), target)))
        relative = posixpath.relpath(there, posixpath.dirname(own) or ".")
        return f"{link[1]}{relative}{'#' + anchor if anchor else ''}{link[3]}"

    return LINK.sub(moved, _indented(markdown))


def _indented(markdown: str) -> str:
    """Indent what belongs to a numbered item by four columns, and begin an item after an empty line: Python's Markdown
    wants both, GitHub neither."""
    inside = False
    lines: list[str] = []
    for line in markdown.splitlines():
        if line and not line.startswith(" "):
            inside = NUMBERED.match(line) is not None
            if inside and lines and lines[-1].startswith(" "):
                lines.append("")
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "\n".join(lines)


def _place(name: str) -> str:
    """Where a file of the project is in the site."""
    if name in BESIDE:
        return BESIDE[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"project/{name}.txt" if name.endswith(".py") else f"project/{name}"


def _linked_sources() -> set[str]:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "rationale").glob("*.md")]
    found = {
        posixpath.normpath(posixpath.join(page.parent.relative_to(ROOT).as_posix(), target.partition("#")[0]))
        for page in pages
        for _, target, _ in LINK.findall(page.read_text())
        if target.startswith("../")
    }
    return {name for name in found if name not in BESIDE and not name.startswith("docs/")}
