"""The README and the docs: their pages, blocks of code, headings and links."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(language: str, *of: Path) -> Iterator[str]:
    """Yield every block of this language in these pages, or in all."""
    for page in of or PAGES:
        yield from (text for kind, text in BLOCK.findall(page.read_text()) if kind == language)


def with_blocks(language: str) -> list[Path]:
    """Return the pages that have a block of this language."""
    return [page for page in PAGES if any(blocks(language, page))]


def page_name(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text())


def code_spans() -> Iterator[str]:
    """What the pages have between backticks."""
    for page in PAGES:
        yield from CODE_SPAN.findall(prose(page))


def links(page: Path) -> list[str]:
    """The targets of a page's links."""
    return LINK.findall(CODE_SPAN.sub("", prose(page)))


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to a page's headings."""
    names: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        number = 1
        unique = name
        while unique in names:
            unique = f"{name}-{number}"
            number += 1
        names.add(unique)
    return names


def program_texts() -> Iterator[str]:
    """The texts of the program, `{}` standing for what is filled in."""
    for folder in ("steps", "workflows"):
        for path in (ROOT / folder).rglob("*.py"):
            yield from _texts(ast.parse(path.read_text()))


def _texts(module: ast.Module) -> Iterator[str]:
    statements = (node for node in ast.walk(module) if isinstance(node, ast.Expr))
    docstrings = {id(node.value) for node in statements}
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def manifest_comments() -> Iterator[str]:
    """The comments of the examples' and the cluster's YAML, without their marks."""
    for folder in (EXAMPLES, ROOT / "workflows" / "cluster"):
        for path in folder.rglob("*.yaml"):
            yield from re.findall(r"^# *(.*)$", path.read_text(), re.MULTILINE)
