"""Texts that break what takes data for code, and chance that is the same every time."""

import random

# One of each kind; the escapes are what an editor would hide or reorder.
HOSTILE = (
    'it\'s "quoted" `twice` \\ and; -- commented /* out */',
    "{{workflow.parameters.x}} {{=sprig.env('HOME')}} ${HOME} $(id) %s %(x)s {0} {x}",
    "nul \0 within",
    "two\nlines\r\nand\ta tab",
    "<script>alert('x')</script>&amp;",
    "'); DROP TABLE images; --",
    "\N{FIRE}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET} "
    "\N{LATIN SMALL LETTER E WITH ACUTE} e\N{COMBINING ACUTE ACCENT}",
    "\N{RIGHT-TO-LEFT OVERRIDE}\u05e2\u05d1\u05e8\u05d9\u05ea "
    "\N{PARAGRAPH SEPARATOR} \N{ZERO WIDTH SPACE}\ufeff",
    "../../etc/passwd CON NUL.txt s3://bucket/key",
    "\u6f22\u5b57 \N{MATHEMATICAL BOLD CAPITAL A} \U0010ffff \uffff",
    "NULL",
    "1:a|0:|7|64x64",
)


def chance(seed: int) -> random.Random:
    """Random numbers, the same for the same seed."""
    return random.Random(seed)  # noqa: S311  # nothing secret
