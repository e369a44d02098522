"""Cells that mean something in the tool that wrote them: no value, or syntax of its prompts.

Prompts are drawn as they are, and a note says what was text in them. A number such as the seed -1
is no value, but never a random one: what is empty follows from the job.
"""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.job.columns import Column
from imagekiln.steps.plan.column_readers import decode_dictionary, is_text
from imagekiln.steps.runtime.figures import pluralize

NO_VALUE = -1
NO_VALUE_PATTERN = (
    r"(?i)^\s*(-1(\.0*)?|none|null|nan|n/?a|#n/a|undefined|auto|automatic|random|default|-)\s*$"
)
# Of a prompt: what is shown of it, and what to use instead, if anything.
SYNTAX = (
    ("quotation marks around all", r"""^\s*("[^"]*"|'[^']*')[,;]?\s*$""", ""),
    ("nan, null or None alone", r"(?i)^\s*(none|null|nan|n/a|#n/a|undefined)\s*$", ""),
    (
        "<lora:...>",
        r"<(lora|lyco|hypernet|lora_[a-z]+):[^>]*>",
        "for LoRAs, use the column `loras`",
    ),
    ("<token>", r"<[A-Za-z][\w-]*\s*/?>", ""),
    ("(word:1.3)", r"\([^()]*:\s*[0-9.]+\s*\)|\(\(|\S::-?[0-9]", ""),
    (r"\(", r"\\[()\[\]]", ""),
    ("[word]", r"\[[^\[\]]+\]", ""),
    ("{prompt}", r"(?i)\{\{? *prompt *\}?\}", "for styles, `prompts.template`"),
    ("{a|b}", r"\{[^{}]*\|[^{}]*\}", "for choices, `prompts.template`"),
    ("__wildcard__", r"__[A-Za-z0-9_/*-]*[A-Za-z0-9*]__", "for wildcards, `prompts.template`"),
    ("BREAK", r"\bBREAK\b", ""),
    ("embedding:name", r"\bembedding:\w", ""),
    ("--option", r"(^|\s)--[a-z]+\b", "for options, columns"),
)
SYNTAX_COLUMNS = ("prompt", "negative_prompt")
ANY_SYNTAX = "|".join(f"({pattern})" for _, pattern, _ in SYNTAX)


class CellNotes:
    """Counts the cells of one reading of the input."""

    def __init__(self) -> None:
        """Begin with no cell."""
        self._syntax: Counter[str] = Counter()
        self._no_values: Counter[tuple[str, str]] = Counter()

    def read(self, column: Column, name: str, array: pa.Array) -> pa.Array:
        """The cells of a column of that name, null where they stand for no value; count them."""
        array = decode_dictionary(array)
        if column.name in SYNTAX_COLUMNS and is_text(array.type):
            self._count_syntax(array)
        if column.kind not in ("integer", "number"):
            return array
        if is_text(array.type):
            is_empty = pc.match_substring_regex(array, NO_VALUE_PATTERN)
        elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            numbers = array.cast(pa.float64(), safe=False)
            is_empty = pc.equal(numbers, NO_VALUE)
        else:
            return array
        self._no_values[column.name, name] += pc.sum(is_empty).as_py() or 0
        null = pa.scalar(None, array.type)
        return pc.if_else(is_empty, null, array)

    def _count_syntax(self, texts: pa.Array) -> None:
        has_syntax = pc.match_substring_regex(texts, ANY_SYNTAX)
        found = texts.filter(has_syntax)
        for label, pattern, _ in SYNTAX if len(found) else ():
            matches = pc.match_substring_regex(found, pattern)
            self._syntax[label] += pc.sum(matches).as_py()

    def describe(self) -> tuple[str, ...]:
        """A sentence on what counts as empty, and one on what is drawn as text."""
        notes = []
        for (ours, name), count in self._no_values.items():
            if count:
                value = "a seed of its own" if ours == "seed" else "the job's own value"
                cells = "1 cell that says" if count == 1 else f"{count:,} cells that say"
                notes.append(
                    f"Column {name!r} has {cells} -1, none or the like: read as empty, so that "
                    f"each such row has {value}, the same each time."
                )
        found = {label: remedy for label, _, remedy in SYNTAX if self._syntax[label]}
        if found:
            counts = (f"{label} ({pluralize(self._syntax[label], 'text')})" for label in found)
            advice = "; ".join(filter(None, found.values()))
            notes.append(
                "Drawn as plain text, without the meaning that it has in other tools: "
                f"{', '.join(counts)}." + (f" Instead, {advice}." if advice else "")
            )
        return tuple(notes)
