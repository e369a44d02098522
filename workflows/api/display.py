"""Results as people see them: `print` and notebooks show what the commands print.

Their texts are the commands', which stand above the steps that make results. So a type gets its
text when a function of `imagekiln` first returns a result of it.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class PrettyPrinter(Protocol):
    """What IPython prints with."""

    def text(self, text: str, /) -> None:
        """Print a text as it is."""


def shown(result: T, format_text: Callable[[T], str]) -> T:
    """Return a result, after having all of its type shown by this text. Their `repr` stays."""

    # As IPython calls it: the last argument says whether the result is within itself.
    def print_pretty(result: T, printer: PrettyPrinter, _: object) -> None:
        printer.text(format_text(result))

    for name, method in {"__str__": format_text, "_repr_pretty_": print_pretty}.items():
        setattr(type(result), name, method)
    return result
