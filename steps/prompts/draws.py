"""Options drawn by weighted rendezvous hashing.

Each option has a score that follows from the draw's key and the option's own text; the lowest wins.
So a new option takes the draws that it wins, and no other draw changes. Scores consist of integers,
sums, products and quotients, which are the same on every machine, as NumPy's logarithms are not.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

HASH_BYTES = 8
# A hash as a fraction between 0 and 1, both excluded, of as many bits as a float has.
FRACTION_BITS = 52
FRACTION = 2.0**-FRACTION_BITS
UNUSED_BITS = np.uint64(64 - FRACTION_BITS)
MIXING_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
LAST_SHIFT = np.uint64(31)
LOG_2 = 0.6931471805599453
LOGARITHM_DEGREES = range(17, 0, -2)  # exact to 1e-9, which nobody sees in what is drawn
Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


def hash_text(text: str, key: bytes = b"") -> int:
    """A hash of a text, of 64 bits."""
    digest = hashlib.blake2b(text.encode(), digest_size=HASH_BYTES, key=key)
    return int.from_bytes(digest.digest(), "little")


def hash_texts(texts: Sequence[str]) -> Hashes:
    """The hashes of several texts."""
    return np.fromiter(map(hash_text, texts), np.uint64, len(texts))


def make_weights(weights: Sequence[Fraction]) -> Floats | None:
    """Weights, all more than 0, for `draw_options`; None if all are equal."""
    if len(set(weights)) == 1:
        return None
    return np.array(weights, np.float64)


def draw_options(hashes: Hashes, weights: Floats | None, key: int, count: int) -> list[int]:
    """The indices of `count` options, the best first: a sample without replacement.

    Without `weights`, all options are as likely.
    """
    mixed = _mix(hashes ^ np.uint64(key))
    scores: Hashes | Floats = ~mixed
    if weights is not None:
        values = (mixed >> UNUSED_BITS).astype(np.float64)
        fractions = (values + 0.5) * FRACTION
        scores = _negative_logarithms(fractions) / weights
    if count == 1:
        return [int(scores.argmin())]
    last = count - 1
    best = np.argpartition(scores, last)[:count]
    order = np.argsort(scores[best])
    return [int(index) for index in best[order]]


def _mix(values: Hashes) -> Hashes:
    """Each value with its bits spread over all others: the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        for shift, factor in MIXING_STEPS:
            values = (values ^ (values >> shift)) * factor
    return values ^ (values >> LAST_SHIFT)


def _negative_logarithms(fractions: Floats) -> Floats:
    """-ln of fractions below 1: of their exponents, and of their mantissas as 2 artanh."""
    mantissas, exponents = np.frexp(fractions)
    ratios = (1 - mantissas) / (1 + mantissas)
    squares = ratios * ratios
    series = np.zeros_like(ratios)
    for degree in LOGARITHM_DEGREES:
        series = series * squares + 1 / degree
    logarithms: Floats = 2 * ratios * series - exponents * LOG_2
    return logarithms
