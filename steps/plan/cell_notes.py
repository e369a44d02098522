"""Cells that mean something in the tool that wrote them: no value, or syntax of its prompts.

Prompts are drawn as they are, and a note says what was text in them. A number such as the seed -1
is no value, but never a random one: what is empty follows from the job.
"""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.columns import Column
from imagekiln.steps.plan.column_readers import Cells
from imagekiln.steps.runtime.figures import pluralize

NO_VALUE = -1
NO_VALUE_PATTERN = (
    r"(?i)^\s*(none|null|nan|n/?a|#n/a|undefined|auto|automatic|random|default|-)\s*$"
)
# Of a prompt, by what is shown of it: a column that failed to be written, or syntax.
SYNTAX = {
    "quotation marks around all": r"""^\s*("[^"]*"|'[^']*')[,;]?\s*$""",
    "nan, null or None alone": r"(?i)^\s*(none|null|nan|n/a|#n/a|undefined)\s*$",
    "<lora:...>": r"<(lora|lyco|hypernet|lora_[a-z]+):[^>]*>",
    "<token>": r"<[A-Za-z][\w-]*\s*/?>",
    "(word:1.3)": r"\([^()]*:\s*[0-9.]+\s*\)|\(\(|\S::-?[0-9]",
    r"\(": r"\\[()\[\]]",
    "[word]": r"\[[^\[\]]+\]",
    "{prompt}": r"(?i)\{\{? *prompt *\}?\}",
    "{a|b}": r"\{[^{}]*\|[^{}]*\}",
    "__wildcard__": r"__[A-Za-z0-9_/*-]*[A-Za-z0-9*]__",
    "BREAK": r"\bBREAK\b",
    "embedding:name": r"\bembedding:\w",
    "--option": r"(^|\s)--[a-z]+\b",
}
ANY_SYNTAX = "|".join(f"({pattern})" for pattern in SYNTAX.values())
REMEDIES = {
    "<lora:...>": "for LoRAs, use the column `loras`",
    "{prompt}": "for styles, `prompts.template`",
    "{a|b}": "for choices, `prompts.template`",
    "__wildcard__": "for wildcards, `prompts.template`",
    "--option": "for options, columns",
}
SYNTAX_COLUMNS = ("prompt", "negative_prompt")


class CellNotes:
    """Counts the cells of one reading of the input."""

    def __init__(self) -> None:
        """Begin with no cell."""
        self._syntax: Counter[str] = Counter()
        self._no_values: Counter[str] = Counter()

    def read(self, column: Column, name: str, array: pa.Array, cells: Cells) -> Cells:
        """The cells of a column of that name, without what stands for no value; count them."""
        if column.name in SYNTAX_COLUMNS:
            self._count_syntax(cells.values)
        if column.kind not in ("integer", "number"):
            return cells
        is_empty = pc.equal(cells.values, NO_VALUE)
        is_empty = pc.fill_null(is_empty, False)
        valid = cells.valid
        if valid is not None and not pc.all(valid).as_py():
            texts = _to_text(array, valid)
            is_marker = pc.match_substring_regex(texts, NO_VALUE_PATTERN)
            is_marker = pc.fill_null(is_marker, False)
            is_empty = pc.or_(is_empty, is_marker)
            valid = pc.or_(valid, is_empty)
        count = pc.sum(is_empty).as_py() or 0
        if not count:
            return cells
        self._no_values[name] += count
        null = pa.scalar(None, cells.values.type)
        values = pc.if_else(is_empty, null, cells.values)
        return Cells(values, valid)

    def _count_syntax(self, texts: pa.Array) -> None:
        has_syntax = pc.match_substring_regex(texts, ANY_SYNTAX)
        found = texts.filter(has_syntax)
        if not len(found):
            return
        for label, pattern in SYNTAX.items():
            matches = pc.match_substring_regex(found, pattern)
            count = pc.sum(matches).as_py()
            if count:
                self._syntax[label] += count

    def describe(self) -> tuple[str, ...]:
        """A sentence on what counts as empty, and one on what is drawn as text."""
        notes = []
        for name, count in self._no_values.items():
            cells = "1 cell that says" if count == 1 else f"{count:,} cells that say"
            notes.append(
                f"Column {name!r} has {cells} -1, none or the like: read as empty, so that the "
                "job's own value applies, and the same each time."
            )
        if self._syntax:
            notes.append(self._describe_syntax())
        return tuple(notes)

    def _describe_syntax(self) -> str:
        counts = []
        remedies = []
        for label, count in self._syntax.items():
            texts = pluralize(count, "text")
            counts.append(f"{label} ({texts})")
            if label in REMEDIES:
                remedies.append(REMEDIES[label])
        listed = ", ".join(counts)
        note = f"Drawn as plain text, without the meaning that it has in other tools: {listed}."
        if remedies:
            note += f" Instead, {'; '.join(remedies)}."
        return note


def _to_text(array: pa.Array, valid: pa.Array) -> pa.Array:
    """The cells that are not valid as text, as far as they are."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return pa.nulls(len(array), pa.string())
    null = pa.scalar(None, array.type)
    return pc.if_else(valid, null, array)
