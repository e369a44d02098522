"""Cells of delimited text whose quoting is off: quotation marks within, or other rows within.

The `csv` module reads both without a word. A cell that certainly holds rows is refused; of what may
be meant, a note names the first.
"""

import re
from collections import Counter

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runtime.figures import pluralize

LINE_BREAK = re.compile(r"\r\n|\r|\n")
MAX_SHOWN_CHARS = 60
MARKS_PROBLEM = "with quotation marks that are drawn as part of a cell"
BREAKS_PROBLEM = "with line breaks in a cell that may be other rows"


class QuotingCheck:
    """Looks at the records of one file, each with the lines that it was read from."""

    def __init__(self, where: str, delimiter: str) -> None:
        """Check a file of this name."""
        mark = re.escape(delimiter)
        field = rf'(?:"(?:[^"]|"")*"|[^"{mark}]*)'
        self._regular = re.compile(rf"{field}(?:{mark}{field})*[\r\n]*")
        self._delimiter = delimiter
        # Prose has a space after a comma, or the end of a line; a row has its next cell.
        self._tight = re.compile(rf"{mark}(?=[^\s])")
        self._where = where
        self._rows: Counter[str] = Counter()  # by what may be wrong with them
        self._firsts: dict[str, str] = {}

    def check(self, line: int, lines: list[str], record: list[str]) -> None:
        """Check a record. Raises BadInput where a cell has swallowed the rows after it."""
        if len(lines) > 1:
            self._check_breaks(line, record)
        if any('"' in cell for cell in record):
            self._check_marks(line, "".join(lines), record)

    def describe(self) -> tuple[str, ...]:
        """A note for each kind of doubt, with its first row."""
        notes = []
        for problem, rows in self._rows.items():
            count = pluralize(rows, "row")
            notes.append(f"{self._where}: {count} {problem}; the first is {self._firsts[problem]}.")
        return tuple(notes)

    def _add_doubt(self, problem: str, line: int, cell: str) -> None:
        shown = cell if len(cell) <= MAX_SHOWN_CHARS else f"{cell[:MAX_SHOWN_CHARS]}…"
        self._firsts.setdefault(problem, f"line {line}, read as {shown!r}")
        self._rows[problem] += 1

    def _check_marks(self, line: int, text: str, record: list[str]) -> None:
        if self._regular.fullmatch(text) is None:
            cell = next(cell for cell in record if '"' in cell)
            self._add_doubt(MARKS_PROBLEM, line, cell)

    def _check_breaks(self, line: int, record: list[str]) -> None:
        for index, cell in enumerate(record):
            texts = LINE_BREAK.split(cell)
            if len(texts) == 1:
                continue
            # Of the row that it begins, of those that it swallows, and of that whose cell it ends.
            whole = len(record) - 1
            swallowed = [whole] * (len(texts) - 2)
            expected = [whole - index, *swallowed, index]
            marks = [text.count(self._delimiter) for text in texts]
            tight = [len(self._tight.findall(text)) for text in texts]
            if whole and expected == marks == tight:
                raise BadInput(
                    f"{self._where}: line {line} has a quoted cell that holds other rows: "
                    f"{cell[:MAX_SHOWN_CHARS]!r}. Correct its quotation marks; if it is one cell, "
                    "write the table as JSON Lines or Parquet."
                )
            may_be_rows = map(int.__ge__, marks, expected)
            if all(may_be_rows):
                self._add_doubt(BREAKS_PROBLEM, line, cell)
                return
