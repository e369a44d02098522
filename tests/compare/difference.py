"""Compare two snapshots: a table of scenarios and aspects, and the first difference of each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.compare.facts import ASPECTS, BYTES, Facts, Values, load
from tests.compare.vocabulary import Vocabulary

ABSENT = "absent"
WIDTH = 300  # characters shown of a value
LEGEND = """
equal: every value and byte. content: the values (or the YAML's documents) are equal, the bytes are
not. A number: so many values differ. -: nothing to compare. A changed run id is no difference.
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


def compare(before: Path, after: Path, vocabulary: Vocabulary) -> tuple[str, bool]:
    """What to print of two folders of snapshots, and whether they are the same."""
    names = sorted({path.stem for folder in (before, after) for path in folder.glob("*.json")})
    rows = {name: _row(name, before, after, vocabulary) for name in names}
    lines = _table([("", *ASPECTS, "run id"), *((name, *row.cells) for name, row in rows.items())])

    found = [
        f"{name}, {aspect} ({len(differences)}), first: {differences[0]}"
        for name, row in rows.items()
        for aspect, differences in row.differences.items()
    ]
    verdict = f"{len(names)} scenarios, {len(found)} aspects differ."
    same = bool(names) and not found
    return "\n".join([*lines, LEGEND, *found, verdict]), same


def _row(name: str, before: Path, after: Path, vocabulary: Vocabulary) -> Row:
    files = [folder / f"{name}.json" for folder in (before, after)]
    presence = ["present" if file.exists() else ABSENT for file in files]
    if ABSENT in presence:
        difference = Difference(f"{name}.json", *presence)
        return Row((*["-"] * len(ASPECTS), "-"), {"snapshot": [difference]})

    (runs, old), (new_runs, new) = (load(file, vocabulary) for file in files)
    differences = {aspect: _differences(old, new, aspect) for aspect in ASPECTS}
    cells = [_cell(differences[name], old.get(name) or new.get(name)) for name in ASPECTS]
    run_id = "-" if not runs and not new_runs else "equal" if runs == new_runs else "changed"
    return Row((*cells, run_id), {name: each for name, each in differences.items() if each})


def _differences(old: Facts, new: Facts, aspect: str) -> list[Difference]:
    before, after = old.get(aspect, {}), new.get(aspect, {})
    labels = dict.fromkeys([*before, *after])
    pairs = ((label, before.get(label, ABSENT), after.get(label, ABSENT)) for label in labels)
    return [Difference(*pair) for pair in pairs if pair[1] != pair[2]]


def _cell(differences: list[Difference], values: Values | None) -> str:
    if not values:
        return "-"
    if not differences:
        return "equal"
    if all(each.label.endswith(BYTES) for each in differences):
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
