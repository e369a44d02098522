"""Cells of delimited text whose quoting is off: quotation marks within, or other rows within.

The `csv` module reads both without a word. A cell that certainly holds rows is refused; of what may
be meant, a note names the first.
"""

import re
from collections import Counter

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.runtime.figures import pluralize

LINE_BREAK = re.compile(r"\r\n|\r|\n")
MARKS_PROBLEM = "with quotation marks that are drawn as part of a cell"
BREAKS_PROBLEM = "with line breaks in a cell that may be other rows"


class QuotingCheck:
    """Looks at the records of one file, each with the text that it was read from."""

    def __init__(self, where: str, delimiter: str) -> None:
        """Check a file of this name."""
        self._where = where
        self._delimiter = delimiter
        # Prose has a space after a comma, or the end of a line; a row has its next cell.
        mark = re.escape(delimiter)
        self._tight = re.compile(rf"{mark}(?=\S)")
        self._rows: Counter[str] = Counter()  # by what may be wrong with them
        self._firsts: dict[str, str] = {}

    def check(self, line: int, text: str, record: list[str]) -> None:
        """Check a record. Raises BadInput where a cell has swallowed the rows after it."""
        doubts: dict[str, str] = {}
        whole = len(record) - 1
        for index, cell in enumerate(record):
            quoted = cell.replace('"', '""')
            if quoted != cell and quoted not in text:
                doubts.setdefault(MARKS_PROBLEM, cell)
            if self._may_be_rows(line, cell, index, whole):
                doubts.setdefault(BREAKS_PROBLEM, cell)
        for problem, cell in doubts.items():
            self.count(line, problem, cell)

    def count(self, line: int, problem: str, text: str) -> None:
        """Count a row with a problem."""
        self._rows[problem] += 1
        self._firsts.setdefault(problem, f"line {line}, read as {cut_name(text)!r}")

    def _may_be_rows(self, line: int, cell: str, before: int, whole: int) -> bool:
        """Check a cell with so many separators before it, and in a whole row."""
        texts = LINE_BREAK.split(cell)
        if len(texts) == 1:
            return False
        # Of the row that it begins, of those that it swallows, and of that whose cell it ends.
        swallowed = [whole] * (len(texts) - 2)
        expected = [whole - before, *swallowed, before]
        marks = [text.count(self._delimiter) for text in texts]
        tight = [len(self._tight.findall(text)) for text in texts]
        if whole and expected == marks == tight:
            raise BadInput(
                f"{self._where}: line {line} has a quoted cell that holds other rows: "
                f"{cut_name(cell)!r}. Correct its quotation marks; if it is one cell, "
                "write the table as JSON Lines or Parquet."
            )
        return all(map(int.__ge__, marks, expected))

    def describe(self) -> tuple[str, ...]:
        """A note for each kind of doubt, with its first row."""
        notes = []
        for problem, rows in self._rows.items():
            count = pluralize(rows, "row")
            first = self._firsts[problem]
            notes.append(f"{self._where}: {count} {problem}; the first is {first}.")
        return tuple(notes)
