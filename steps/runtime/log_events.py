"""Lines of a log, one JSON object each, with what the process works on.

In pods, the template asks for them by IMAGEKILN_LOG=json. Each line then has the run, and where
there is one, the shard and the number of the attempt, counted from 0.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LOG_VARIABLE = "IMAGEKILN_LOG"
ATTEMPT_VARIABLE = "IMAGEKILN_ATTEMPT"

# Of the whole process: threads write lines too.
_context: dict[str, object] = {}


@contextmanager
def empty_log_context() -> Iterator[None]:
    """Forget at the end of the block what its lines had in common."""
    try:
        yield
    finally:
        _context.clear()


def add_log_context(step: str, run: str | None = None, shard: int | None = None) -> None:
    """Give every later line the step, the run by its URI if there is one yet, and the shard."""
    _context["step"] = step
    if run is not None:
        _context["run"] = run
    if shard is not None:
        _context["shard"] = shard


def is_log_structured(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether everything that is printed has to be a line of JSON."""
    return environment.get(LOG_VARIABLE) == "json"


def format_log_event(name: str, fields: Mapping[str, object]) -> str:
    """One line: the event, its fields, and what all lines have in common."""
    line: dict[str, object] = {"event": name, **fields, **_context}
    attempt = os.environ.get(ATTEMPT_VARIABLE, "")
    if attempt.isdecimal():
        line["attempt"] = int(attempt)
    return json.dumps(line)
