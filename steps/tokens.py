"""Which prompts the model will cut: more tokens than its text encoder reads.

Tokenisers split at white space first, so a prompt's tokens are the sum of its words'. Words repeat, prompts do
not: counting each word once is some ten times faster than tokenising every prompt.
"""

import json
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from imagekiln.steps.errors import BadInput

REMEMBERED_WORDS = 250_000
REMEMBERED_CHARS = 40  # longer words are hardly met again
ENCODED_WORDS = 256  # at a time
UNKNOWN = -1
UNSET = 1_000_000  # tokenisers without a limit say 1e30
CLIP_SPECIALS = 2
Counts = npt.NDArray[np.int64]
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class PromptLengths:
    """Counts tokens with the tokeniser that reads the most; knows nothing where the model ships none."""

    def __init__(self, model: Path) -> None:
        """Read the tokenisers of the model in this folder. Raises BadInput on a damaged one."""
        self._words: dict[str, int] = {}
        self._limit, self._tokenizer = max(
            (_load(folder) for folder in sorted(model.glob("tokenizer*")) if _readable(folder)),
            key=lambda found: found[0],
            default=(0, None),
        )

    def cut(self, prompts: pa.Array) -> pa.Array:
        """Whether each prompt will be cut; null where that cannot be known."""
        if self._tokenizer is None:
            return pa.nulls(len(prompts), pa.bool_())
        prompts = pc.fill_null(prompts, "")
        # No token is shorter than a byte, so short prompts need no counting.
        long = pc.greater(pc.binary_length(prompts), self._limit)
        return pc.replace_with_mask(long, long, pa.array(self._counts(prompts.filter(long)) > self._limit))

    def _counts(self, prompts: pa.Array) -> Counts:
        # Other white space stays within a word, where the tokeniser finds it: a plain blank splits three times faster.
        words = pc.split_pattern(prompts, " ")
        each = words.flatten().dictionary_encode()
        totals = np.concatenate([[0], np.cumsum(self._lengths(each.dictionary)[each.indices.to_numpy()])])
        offsets = words.offsets.to_numpy()
        counts: Counts = totals[offsets[1:]] - totals[offsets[:-1]]
        return counts

    def _lengths(self, words: pa.Array) -> Counts:
        texts: list[str] = words.to_pylist()
        lengths = np.fromiter(map(self._words.get, texts, repeat(UNKNOWN)), np.int64, len(texts))
        new = np.flatnonzero(lengths == UNKNOWN)
        if len(new):
            lengths[new] = self._learn([texts[place] for place in new])
        return lengths

    def _learn(self, words: list[str]) -> list[int]:
        lengths = [length for some in _sliced(words) for length in self._encoded(some)]
        if len(self._words) + len(words) > REMEMBERED_WORDS:
            self._words.clear()
        pairs = zip(words, lengths, strict=True)
        self._words.update((word, length) for word, length in pairs if len(word) <= REMEMBERED_CHARS)
        return lengths

    def _encoded(self, words: list[str]) -> list[int]:
        return [len(tokens) for tokens in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)]


def _sliced(words: list[str]) -> Iterator[list[str]]:
    # A token takes some hundred bytes while it is counted, and a word may be a whole text without a blank.
    return (words[start : start + ENCODED_WORDS] for start in range(0, len(words), ENCODED_WORDS))


def _load(folder: Path) -> tuple[int, Tokenizer]:
    """The most tokens of a prompt's own that the tokeniser in `folder` keeps, and the tokeniser."""
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        limit = min(int(settings.get("model_max_length", UNSET)), UNSET)
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return limit - tokenizer.num_special_tokens_to_add(is_pair=False), tokenizer
        return limit - CLIP_SPECIALS, _clip(folder)
    except Exception as error:  # tokenizers raises bare Exception
        raise BadInput(f"{folder}: is no tokeniser ({error}). Save the model again.") from error


def _readable(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "merges.txt"))


def _clip(folder: Path) -> Tokenizer:
    """CLIP's tokeniser from its vocabulary and merges, which is all that many older models ship."""
    bpe = BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"), end_of_word_suffix="</w>")
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(CLIP_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer
