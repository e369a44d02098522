"""Which failures another try cannot mend: those of the row, its settings or the model.

An image that failed has the error's class in front of its message. The classes here come from what
was asked for, which a round of `retry` asks for again. Any other, such as memory that ran out, a
lost device or a file that could not be read, may go away.
"""

import pyarrow as pa
import pyarrow.compute as pc

PERMANENT_ERRORS = (
    "AssertionError",
    "AttributeError",
    "IndexError",
    "KeyError",
    "NotImplementedError",
    "OverflowError",
    "TypeError",
    "ValueError",
    "ZeroDivisionError",
)
PERMANENT_PATTERN = rf"^(?:{'|'.join(PERMANENT_ERRORS)}): "


def is_permanent(error: str) -> bool:
    """Whether another try ends with the same error."""
    name, colon, _ = error.partition(": ")
    return bool(colon) and name in PERMANENT_ERRORS


def permanent_mask(statuses: pa.Array, errors: pa.Array) -> pa.Array:
    """For each image of a manifest, whether it failed so that another try cannot mend it."""
    has_permanent_error = pc.match_substring_regex(errors, PERMANENT_PATTERN)
    is_failed = pc.equal(statuses, "failed")
    return pc.and_(is_failed, pc.fill_null(has_permanent_error, False))
