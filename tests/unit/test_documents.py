"""The documents: width, links, examples that penstock's own reader accepts, and a way to every page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from penstock import errors
from penstock.config.load import load
from penstock.errors import PenstockError

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROSE_COLUMNS = 100
CODE_COLUMNS = 120
TABLE_COLUMNS = 400  # a table's row cannot be wrapped; shorten it, or make it a headed paragraph
MINIMAL: dict[str, object] = {
    "version": 1,
    "name": "shop",
    "source": {"type": "postgres", "url": "postgresql://app@db/shop"},
    "tables": [{"match": "public.*"}],
    "destinations": [{"name": "lake", "type": "iceberg", "warehouse": "./warehouse"}],
}


def kinds(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, kind ("prose", "table", "code" or "generated") and text of every line of a page."""
    fenced = generated = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("<!--"):
            generated = not generated
            yield number, "generated", line
        elif line.lstrip().startswith("```"):
            fenced = not fenced
            yield number, "code", line
        elif generated:
            yield number, "generated", line
        else:
            yield number, "code" if fenced else "table" if line.lstrip().startswith("|") else "prose", line


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    headings = [line for _, kind, line in kinds(page.read_text()) if kind == "prose" and line.startswith("#")]
    words = [re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()) for heading in headings]
    return {word.replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_fit_the_width(page: Path) -> None:
    limits = {"prose": PROSE_COLUMNS, "code": CODE_COLUMNS, "table": TABLE_COLUMNS, "generated": 10_000}
    wide = [
        f"{page.name}:{number}: {len(line)} columns, {limits[kind]} allowed in {kind}"
        for number, kind, line in kinds(page.read_text())
        if len(line) > limits[kind]
    ]
    assert not wide, "\n".join(wide)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    text = "\n".join(line for _, kind, line in kinds(page.read_text()) if kind != "code")
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def yaml_blocks() -> list[tuple[str, str]]:
    return [
        (page.name, block) for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "block"), yaml_blocks())
def test_examples_are_pipeline_files(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that begin with `version:` load as they stand; fragments load within the smallest whole file."""
    for name in re.findall(r"\$\{([A-Z_]+)", block):
        monkeypatch.setenv(
            name, "secret" if name in ("PGPASSWORD", "MYSQL_PASSWORD", "MASK_SALT") else "postgresql://app@db/shop"
        )
    file = tmp_path / "pipeline.yaml"
    written = yaml.safe_load(block)
    smallest = {key: value for key, value in MINIMAL.items() if key != "source" or "sources" not in written}
    file.write_text(block if "version" in written else yaml.safe_dump({**smallest, **written}))
    assert load(file).tables, page


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#\s]+\.md)", index.read_text())}
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - {index.resolve()}
    assert not {page.name for page in pages - linked}


def test_every_page_has_a_place_in_the_site() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages == {name for name in named if not name.startswith("project/")}, "see nav in mkdocs.yml"


def error_codes() -> list[str]:
    """The codes that classes anywhere in the source give themselves."""
    classes = [
        node
        for file in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    given: list[tuple[ast.expr, ast.expr | None]] = [
        (line.targets[0], line.value) for one in classes for line in one.body if isinstance(line, ast.Assign)
    ]
    given += [(line.target, line.value) for one in classes for line in one.body if isinstance(line, ast.AnnAssign)]
    return [
        str(value.value)
        for target, value in given
        if isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant) and value.value
    ]


def test_every_error_has_a_code_of_its_own_and_a_row_on_the_operations_page() -> None:
    named = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, PenstockError)]
    assert all("code" in vars(error) for error in named), "give the class a code in errors.py"
    codes = error_codes()
    assert len(set(codes)) == len(codes)
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|", text.partition("## Errors by code")[2], re.MULTILINE)
    assert sorted(rows) == sorted([*codes, "unexpected"]), "docs/operations.md has a row for each code"
