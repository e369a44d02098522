"""The code has room and names what it means: figures over all of it, which no review counts.

Run as a script (`python -m tests.package.test_readability`), it prints them by package.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("steps", "workflows")

# Hand-written model codebases have 6 to 10 nodes of the syntax tree on a line; more is packed.
MAX_NODES_PER_LINE = 10.0
MIN_LINES = 60  # of fewer lines, an average says nothing

# Words that point at a thing where a name should say what it is.
POINTING_WORDS = {
    "told", "said", "there", "found", "taken", "each", "wanted", "known",
    "given", "made", "seen", "asked", "kept", "shown", "held",
}  # fmt: skip
MAX_POINTING_SHARE = 0.005  # of identifiers


@dataclass
class Figures:
    """What was counted in one package. Lines are those of function bodies that are not blank."""

    nodes: int = 0
    lines: int = 0
    identifiers: int = 0
    pointing: int = 0

    @property
    def nodes_per_line(self) -> float:
        """How densely its functions are written."""
        return self.nodes / max(1, self.lines)

    @property
    def pointing_share(self) -> float:
        """The share of identifiers that point instead of naming."""
        return self.pointing / max(1, self.identifiers)

    def __iadd__(self, other: "Figures") -> "Figures":
        self.nodes += other.nodes
        self.lines += other.lines
        self.identifiers += other.identifiers
        self.pointing += other.pointing
        return self


def product_modules() -> Iterator[Path]:
    for folder in PRODUCT:
        yield from sorted((ROOT / folder).rglob("*.py"))


def figures_by_package() -> dict[str, Figures]:
    packages: dict[str, Figures] = defaultdict(Figures)
    for path in product_modules():
        packages[path.parent.relative_to(ROOT).as_posix()] += module_figures(path.read_text())
    return dict(packages)


def module_figures(source: str) -> Figures:
    lines = source.splitlines()
    figures = Figures()
    for node in ast.walk(ast.parse(source)):
        identifier = _identifier(node)
        if identifier is not None:
            figures.identifiers += 1
            figures.pointing += _points(identifier)
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                if not _is_docstring(statement):
                    figures.nodes += sum(1 for _ in ast.walk(statement))
                    figures.lines += _line_count(statement, lines)
    return figures


def _identifier(node: ast.AST) -> str | None:
    """The name that a node of the tree defines or uses."""
    for field in ("name", "id", "attr", "arg"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            return value
    return None


def _points(identifier: str) -> bool:
    return not POINTING_WORDS.isdisjoint(identifier.lower().split("_"))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _line_count(statement: ast.stmt, lines: list[str]) -> int:
    own_lines = lines[statement.lineno - 1 : statement.end_lineno]
    return sum(1 for line in own_lines if line.strip())


def type_names() -> Counter[str]:
    """How many times each name of a class is defined."""
    names: Counter[str] = Counter()
    for path in product_modules():
        tree = ast.parse(path.read_text())
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return names


def test_functions_of_every_package_have_room() -> None:
    packed = {
        package: round(figures.nodes_per_line, 1)
        for package, figures in figures_by_package().items()
        if figures.lines >= MIN_LINES and figures.nodes_per_line > MAX_NODES_PER_LINE
    }
    assert packed == {}


def test_identifiers_name_instead_of_pointing() -> None:
    packages = figures_by_package()
    total = Figures()
    for figures in packages.values():
        total += figures
    shares = {package: f"{figures.pointing_share:.2%}" for package, figures in packages.items()}
    assert total.pointing_share < MAX_POINTING_SHARE, shares


def test_no_two_types_share_a_name() -> None:
    assert {name: count for name, count in type_names().items() if count > 1} == {}


def _print_figures() -> None:
    for package, figures in figures_by_package().items():
        density = f"{figures.nodes_per_line:5.1f} nodes a line"
        print(f"{package:28} {density}  {figures.pointing_share:7.2%} pointing")  # noqa: T201
    print({name: count for name, count in type_names().items() if count > 1})  # noqa: T201


if __name__ == "__main__":
    _print_figures()
