"""Draw options by weighted rendezvous hashing.

Each option has a score that follows from the draw's key and the option's source. The lowest score
wins. A new option takes over only the draws that it wins; no other draw changes. Scores use only
integers, sums, products and quotients, which are equal on every machine, unlike NumPy's logarithms.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

HASH_BYTES = 8
# A hash becomes a fraction between 0 and 1, both excluded, with as many bits as a float has.
FRACTION_BITS = 52
FRACTION = 2.0**-FRACTION_BITS
UNUSED_BITS = np.uint64(64 - FRACTION_BITS)
MIXING_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
LAST_SHIFT = np.uint64(31)
LOG_2 = 0.6931471805599453
LOGARITHM_DEGREES = range(17, 0, -2)  # exact to 1e-9, too little to show in draws
Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]


def hash_text(text: str, key: bytes = b"") -> int:
    """Hash a string to 64 bits."""
    digest = hashlib.blake2b(text.encode(), digest_size=HASH_BYTES, key=key)
    return int.from_bytes(digest.digest(), "little")


def hash_texts(texts: Sequence[str]) -> Hashes:
    """Hash each string to 64 bits."""
    return np.fromiter(map(hash_text, texts), np.uint64, len(texts))


def make_weights(weights: Sequence[Fraction]) -> Floats | None:
    """Convert weights above 0 for `draw_options`; None if all are equal."""
    if len(set(weights)) == 1:
        return None
    return np.array(weights, np.float64)


def draw_options(hashes: Hashes, weights: Floats | None, key: int, count: int) -> list[int]:
    """Draw `count` options without replacement; return their indices, the best score first.

    Without `weights`, all options are equally likely.
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
    """Mix the bits of each value by the finalizer of splitmix64."""
    with np.errstate(over="ignore"):
        for shift, factor in MIXING_STEPS:
            values = (values ^ (values >> shift)) * factor
    return values ^ (values >> LAST_SHIFT)


def _negative_logarithms(fractions: Floats) -> Floats:
    """Compute -ln of fractions below 1 from their exponents, and from their mantissas by artanh."""
    mantissas, exponents = np.frexp(fractions)
    ratios = (1 - mantissas) / (1 + mantissas)
    squares = ratios * ratios
    series = np.zeros_like(ratios)
    for degree in LOGARITHM_DEGREES:
        series = series * squares + 1 / degree
    logarithms: Floats = 2 * ratios * series - exponents * LOG_2
    return logarithms
