"""Options drawn by weighted rendezvous hashing.

Each option has a score that follows from the draw's key and the option's own text; the best wins.
So a new option takes the draws that it wins, and no other draw changes. Results are the same on
every machine: where logarithms, which differ in their last bits, would decide, decimals do.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import numpy.typing as npt

HASH_BYTES = 8
EXACT = Context(prec=50)
# Scores that are this close in relation to each other are compared exactly.
CLOSENESS = 1e-9
# A hash as a fraction between 0 and 1, both excluded, of as many bits as a float has.
FRACTION_BITS = 52
FRACTION = 2.0**-FRACTION_BITS
UNUSED_BITS = np.uint64(64 - FRACTION_BITS)
MIXING_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
LAST_SHIFT = np.uint64(31)
Hashes = npt.NDArray[np.uint64]


def hash_text(text: str, key: bytes = b"") -> int:
    """A hash of a text, of 64 bits."""
    digest = hashlib.blake2b(text.encode(), digest_size=HASH_BYTES, key=key)
    return int.from_bytes(digest.digest(), "little")


def hash_texts(texts: Sequence[str]) -> Hashes:
    """The hashes of several texts."""
    return np.fromiter(map(hash_text, texts), np.uint64, len(texts))


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of options, all more than 0: exact, and as floats."""

    exact: tuple[Fraction, ...]
    floats: npt.NDArray[np.float64]


def make_weights(weights: tuple[Fraction, ...]) -> Weights | None:
    """The weights of options; None where all are equal."""
    if len(set(weights)) == 1:
        return None
    return Weights(weights, np.array(weights, np.float64))


def draw_options(hashes: Hashes, weights: Weights | None, key: int, count: int) -> list[int]:
    """The indices of `count` options, the best first: a sample without replacement.

    Without `weights`, all options are as likely.
    """
    mixed = _mix(hashes ^ np.uint64(key))
    if weights is None:
        if count == 1:
            return [int(mixed.argmax())]
        order = np.argsort(~mixed, kind="stable")
        return [int(index) for index in order[:count]]

    values = mixed >> UNUSED_BITS
    fractions = (values.astype(np.float64) + 0.5) * FRACTION
    scores = -np.log(fractions) / weights.floats
    last_place = count - 1
    last = np.partition(scores, last_place)[last_place]
    is_close = scores <= last * (1 + CLOSENESS)
    close = [int(index) for index in np.flatnonzero(is_close)]
    if len(close) == 1:
        return close

    def exact_score(index: int) -> Decimal:
        value = int(values[index])
        return _exact_score(value, weights.exact[index])

    close.sort(key=exact_score)
    return close[:count]


def _mix(values: Hashes) -> Hashes:
    """Each value with its bits spread over all others: the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        for shift, factor in MIXING_STEPS:
            values = values ^ (values >> shift)
            values = values * factor
    return values ^ (values >> LAST_SHIFT)


def _exact_score(value: int, weight: Fraction) -> Decimal:
    """The score of an option, to so many digits that no two are mistaken for each other."""
    middle = Decimal(value) + Decimal("0.5")
    fraction = EXACT.multiply(middle, Decimal(FRACTION))
    logarithm = EXACT.ln(fraction)
    denominator = Decimal(-weight.denominator)
    numerator = Decimal(weight.numerator)
    scaled = EXACT.multiply(logarithm, denominator)
    return EXACT.divide(scaled, numerator)
