"""Comments for those who review a rendered manifest: what looks odd in it, and why it is so.

Only on what is printed. On a cluster, comments would be lost anyway, except in texts such as
`podSpecPatch`, which therefore get none: a template that kubectl applied is the one that `submit`
registers.
"""

import re
import textwrap
from collections.abc import Iterator

BLOCK_START = re.compile(r"[-:] \|[0-9]?[-+]?$")
MAX_COMMENT = 100  # characters of a line, without its indentation

# How a line starts, and the comment above it, which is written once. A start without an indentation
# is for lines of any, also for an item of a list.
COMMENTS = [
    (
        "imagekiln.dev/digest:",
        "A hash of this template, by which `imagekiln submit` knows its profile and version.",
    ),
    ("archiveLogs: false", "Argo fails a pod whose log it cannot store."),
    ("{name: cpu-image,", "Images that one run names in place of those below."),
    ("  affinity:", "Plan, aggregate and the other CPU steps keep off GPU nodes, tainted or not."),
    ("  podSpecPatch: |", "With it, Argo's own containers comply with Pod Security 'restricted'."),
    (
        "templateDefaults:",
        "What all steps share. A retry strategy here would also run whole DAGs again.",
    ),
    (
        "    podSpecPatch: |",
        "A line of `image:` only where the run names one. Memory is here because a container's "
        "field takes no expression: after OOMKilled, half of it more for each retry.",
    ),
    ("name: group", "Groups of shards, each of which the Argo UI folds into one node."),
    (
        "name: further",
        "Shards beyond those that one workflow holds: child workflows of this same template, "
        "one after another.",
    ),
    (
        "expression: not (lastRetry.message",
        "A child workflow that failed is final; a pod that was lost is not.",
    ),
    ("{name: nothing,", "The exit handler of child workflows: their parent reports for them."),
    (
        "metrics:",
        "Argo's controller serves them, with argo_workflows_ before the name: docs/monitoring.md.",
    ),
    (
        "expression: lastRetry.exitCode",
        "Exit codes 2 and 3 are final. 75 (try again), 137, 143 and -1 (killed, stopped, gone) "
        "are retried up to the limit; any other while fewer than two retries were made.",
    ),
    ("affinity: {}", "None of the workflow's, which keeps off GPU nodes."),
    (
        "name: finish",
        "The exit handler. It never fails: Argo would take the workflow for failed.",
    ),
    (
        "name: publish-report",
        "Shows the report in Argo's page. Not a part of aggregate, which would fail with a store "
        "that Argo cannot reach.",
    ),
    (
        "concurrencyPolicy: Allow",
        "Each run has its own date and folder; `parallelism` and quotas share the GPUs.",
    ),
    (
        "concurrencyPolicy: Forbid",
        "Two runs would both make what is new in the same table; the next run makes what a "
        "skipped one would have made.",
    ),
    (
        "startingDeadlineSeconds:",
        "A run that was missed is started up to six hours late. Its date is the scheduled one.",
    ),
]


def add_comments(text: str) -> str:
    """A manifest as YAML, with comments above the lines that look odd."""
    return "".join(_commented_lines(text))


def _commented_lines(text: str) -> Iterator[str]:
    remaining = list(COMMENTS)
    block_indent: int | None = None  # of the line that a text of several lines belongs to
    for line in text.splitlines(keepends=True):
        indent = len(line) - len(line.lstrip())
        if block_indent is not None and indent > block_indent:
            yield line
            continue

        block_indent = indent if BLOCK_START.search(line) else None
        matching = _find_comment(line, remaining)
        if matching is not None:
            remaining.remove(matching)
            yield from _wrap_comment(matching[1], indent)
        yield line


def _find_comment(line: str, remaining: list[tuple[str, str]]) -> tuple[str, str] | None:
    content = line.lstrip().removeprefix("- ")
    for start, comment in remaining:
        if (line if start.startswith(" ") else content).startswith(start):
            return start, comment
    return None


def _wrap_comment(comment: str, indent: int) -> Iterator[str]:
    margin = " " * indent
    for line in textwrap.wrap(comment, MAX_COMMENT):
        yield f"{margin}# {line}\n"
