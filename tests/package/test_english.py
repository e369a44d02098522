"""Docstrings begin with an imperative or a noun, and say `if`, not `where`.

Run as a script (`python -m tests.package.test_english`), it prints the figures by package.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.package.test_readability import ROOT, product_modules

POINTING = re.compile(
    r"(?:That|What|Whatever|Which|Whether|How|Who|Whoever|Whose|Those|These|So|Such|Of|Nor|Where"
    r"|If|No|None|All of|Likewise|The latter|The former|As|When|Why|By (?:how|which))\b"
)
SQL = re.compile(r"\bWHERE\b|`[^`]*`")  # a condition in SQL, or code
MAX_POINTING_SHARE = 0.01
MAX_WHERE_SHARE = 0.003  # of words


@dataclass
class Figures:
    """Counts of one package's docstrings."""

    docstrings: int = 0
    pointing: int = 0
    words: int = 0
    where: int = 0

    @property
    def pointing_share(self) -> float:
        return self.pointing / max(1, self.docstrings)

    @property
    def where_share(self) -> float:
        return self.where / max(1, self.words)

    def add(self, docstring: str) -> None:
        words = re.findall(r"[A-Za-z'-]+", SQL.sub("", docstring))
        self.docstrings += 1
        self.pointing += POINTING.match(docstring) is not None
        self.words += len(words)
        self.where += sum(word.lower() == "where" for word in words)


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield docstring


def figures_by_package() -> dict[str, Figures]:
    packages: dict[str, Figures] = defaultdict(Figures)
    for path in product_modules():
        for docstring in docstrings(path.read_text()):
            packages["all"].add(docstring)
            packages[path.parent.relative_to(ROOT).as_posix()].add(docstring)
    return dict(packages)


def test_docstrings_are_plain() -> None:
    figures = figures_by_package()
    pointing = {package: f"{each.pointing_share:.1%}" for package, each in figures.items()}
    where = {package: f"{1000 * each.where_share:.1f} ‰" for package, each in figures.items()}
    assert figures["all"].pointing_share <= MAX_POINTING_SHARE, pointing
    assert figures["all"].where_share <= MAX_WHERE_SHARE, where


def _print_figures() -> None:
    for package, each in sorted(figures_by_package().items()):
        shares = f"{each.pointing_share:6.1%} pointing {1000 * each.where_share:5.1f} ‰ where"
        print(f"{package:32} {each.docstrings:5} {each.pointing:4} {shares}")  # noqa: T201


if __name__ == "__main__":
    _print_figures()
