"""Compare two snapshots: a table of scenarios and aspects, and the first difference of each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compare.facts import ASPECTS, BYTES, Values, load
from tests.compare.vocabulary import Vocabulary

ABSENT = "absent"
WIDTH = 300  # characters shown of a value
LEGEND = """
equal: every value and byte. content: the values (or the YAML's documents) are equal, the bytes are
not. A number: how many values differ. -: nothing to compare. A changed run id is no difference.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not the same in both."""

    label: str
    before: object
    after: object

    def __str__(self) -> str:
        """The label with both values."""
        return f"{self.label}\n    before: {_short(self.before)}\n    after:  {_short(self.after)}"


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario's line of the table, and its differences by aspect."""

    cells: tuple[str, ...]
    differences: Mapping[str, list[Difference]]


def compare(
    before: Path,
    after: Path,
    vocabulary: Vocabulary,
    *,
    only: Sequence[str] = (),
) -> tuple[str, bool]:
    """What to print of two folders of snapshots, and whether they are the same."""
    paths = [*before.glob("*.json"), *after.glob("*.json")]
    names = sorted({path.stem for path in paths if not only or path.stem in only})
    rows = {name: _row(name, before, after, vocabulary) for name in names}

    lines: list[tuple[str, ...]] = [("", *ASPECTS, "run id")]
    findings = []
    for name, row in rows.items():
        lines.append((name, *row.cells))
        for aspect, differences in row.differences.items():
            first = differences[0]
            findings.append(f"{name}, {aspect} ({len(differences)}), first: {first}")

    verdict = f"{len(names)} scenarios, {len(findings)} aspects differ."
    text = "\n".join([*_table(lines), LEGEND, *findings, verdict])
    return text, bool(names) and not findings


def _row(name: str, before: Path, after: Path, vocabulary: Vocabulary) -> Row:
    files = [folder / f"{name}.json" for folder in (before, after)]
    presence = ["present" if file.exists() else ABSENT for file in files]
    if ABSENT in presence:
        difference = Difference(f"{name}.json", *presence)
        return Row((*["-"] * len(ASPECTS), "-"), {"snapshot": [difference]})

    old_runs, old = load(files[0], vocabulary)
    new_runs, new = load(files[1], vocabulary)
    cells = []
    differences = {}
    for aspect in ASPECTS:
        old_values = old.get(aspect, {})
        new_values = new.get(aspect, {})
        changes = _differences(old_values, new_values)
        cells.append(_cell(changes, old_values or new_values))
        if changes:
            differences[aspect] = changes
    return Row((*cells, _run_id_cell(old_runs, new_runs)), differences)


def _differences(before: Values, after: Values) -> list[Difference]:
    differences = []
    for label in dict.fromkeys([*before, *after]):
        old = before.get(label, ABSENT)
        new = after.get(label, ABSENT)
        if old != new:
            differences.append(Difference(label, old, new))
    return differences


def _run_id_cell(before: list[str], after: list[str]) -> str:
    if not before and not after:
        return "-"
    return "equal" if before == after else "changed"


def _cell(differences: list[Difference], values: Values) -> str:
    if not values:
        return "-"
    if not differences:
        return "equal"
    if all(difference.label.endswith(BYTES) for difference in differences):
        return "content"
    return str(len(differences))


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = list(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ([*map(str.ljust, line, widths)] for line in lines)
    return ["  ".join(cells).rstrip() for cells in padded]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}... ({len(text)} characters)"
