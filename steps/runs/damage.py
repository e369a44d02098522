"""Objects of a run whose content cannot be read back: what that raises, and how it is told."""

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.failures import error_reason

DAMAGE_ERRORS = (pa.ArrowException, OSError, ValueError)
# What reading the content of an object may raise, beside what storage raises.
CONTENT_ERRORS = (*DAMAGE_ERRORS, KeyError, TypeError, OverflowError, RecursionError)


def damage_error(where: str, error: Exception) -> BadInput:
    """The error for an object of a run that cannot be read back."""
    whole_reason = error_reason(error)
    reason, *_ = whole_reason.split(". ")  # Arrow explains it in a second sentence
    reason = reason.rstrip(".")
    return BadInput(f"{where}: is damaged ({reason}). Restore or delete it.")
