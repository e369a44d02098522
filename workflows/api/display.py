"""Results as people see them: `print` and notebooks show what the commands print.

Their texts are the commands', which stand above the steps that make results. So a type gets its
text when a function of `imagekiln` first returns a result of it.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def shown(result: T, format_text: Callable[[T], str]) -> T:
    """Return a result, after having all of its type shown by this text. Their `repr` stays."""
    kind = type(result)
    setattr(kind, "__str__", format_text)  # noqa: B010  # type checkers refuse to assign a method
    # As IPython calls it: with its printer, and whether the result is within itself.
    setattr(kind, "_repr_pretty_", lambda self, printer, _: printer.text(format_text(self)))  # noqa: B010
    return result
