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

MAX_CACHED_WORDS = 250_000
MAX_CACHED_WORD_CHARS = 40  # longer words are hardly met again
WORDS_PER_BATCH = 256  # at a time
UNKNOWN_LENGTH = -1
NO_TOKEN_LIMIT = 1_000_000  # tokenisers without a limit say 1e30
CLIP_SPECIAL_TOKENS = 2
TokenCounts = npt.NDArray[np.int64]
CLIP_WORD_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class PromptLengths:
    """Counts tokens with the tokeniser that reads the most; knows nothing where the model ships none."""

    def __init__(self, model: Path) -> None:
        """Read the tokenisers of the model in this folder. Raises BadInput on a damaged one."""
        self._words: dict[str, int] = {}
        self._limit: int | None = None
        self._tokenizer = Tokenizer(BPE())
        if found := [
            _load_tokenizer(folder)
            for folder in sorted(model.glob("tokenizer*"))
            if _has_tokenizer(folder)
        ]:
            self._limit, self._tokenizer = max(found, key=lambda each: each[0])

    def find_truncated(self, prompts: pa.Array) -> pa.Array:
        """Whether each prompt will be cut; null where that cannot be known."""
        if self._limit is None:
            return pa.nulls(len(prompts), pa.bool_())
        prompts = pc.fill_null(prompts, "")
        # No token is shorter than a byte, so short prompts need no counting.
        long = pc.greater(pc.binary_length(prompts), self._limit)
        return pc.replace_with_mask(
            long, long, pa.array(self._count_tokens(prompts.filter(long)) > self._limit)
        )

    def _count_tokens(self, prompts: pa.Array) -> TokenCounts:
        # Other white space stays within a word, where the tokeniser finds it: a plain blank splits three times faster.
        words = pc.split_pattern(prompts, " ")
        each = words.flatten().dictionary_encode()
        totals = np.concatenate(
            [[0], np.cumsum(self._word_lengths(each.dictionary)[each.indices.to_numpy()])]
        )
        offsets = words.offsets.to_numpy()
        counts: TokenCounts = totals[offsets[1:]] - totals[offsets[:-1]]
        return counts

    def _word_lengths(self, words: pa.Array) -> TokenCounts:
        texts: list[str] = words.to_pylist()
        lengths = np.fromiter(
            map(self._words.get, texts, repeat(UNKNOWN_LENGTH)), np.int64, len(texts)
        )
        new = np.flatnonzero(lengths == UNKNOWN_LENGTH)
        if len(new):
            lengths[new] = self._tokenize_words([texts[place] for place in new])
        return lengths

    def _tokenize_words(self, words: list[str]) -> list[int]:
        lengths = [length for some in _word_batches(words) for length in self._encode_lengths(some)]
        if len(self._words) + len(words) > MAX_CACHED_WORDS:
            self._words.clear()
        pairs = zip(words, lengths, strict=True)
        self._words.update(
            (word, length) for word, length in pairs if len(word) <= MAX_CACHED_WORD_CHARS
        )
        return lengths

    def _encode_lengths(self, words: list[str]) -> list[int]:
        return [
            len(tokens)
            for tokens in self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        ]


def _word_batches(words: list[str]) -> Iterator[list[str]]:
    # A token takes some hundred bytes while it is counted, and a word may be a whole text without a blank.
    return (
        words[start : start + WORDS_PER_BATCH] for start in range(0, len(words), WORDS_PER_BATCH)
    )


def _load_tokenizer(folder: Path) -> tuple[int, Tokenizer]:
    """The most tokens of a prompt's own that the tokeniser in `folder` keeps, and the tokeniser."""
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        limit = min(int(settings.get("model_max_length", NO_TOKEN_LIMIT)), NO_TOKEN_LIMIT)
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return limit - tokenizer.num_special_tokens_to_add(is_pair=False), tokenizer
        return limit - CLIP_SPECIAL_TOKENS, _load_clip_tokenizer(folder)
    except Exception as error:  # tokenizers raises bare Exception
        raise BadInput(f"{folder}: is no tokeniser ({error}). Save the model again.") from error


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "merges.txt"))


def _load_clip_tokenizer(folder: Path) -> Tokenizer:
    """CLIP's tokeniser from its vocabulary and merges, which is all that many older models ship."""
    bpe = BPE.from_file(
        str(folder / "vocab.json"), str(folder / "merges.txt"), end_of_word_suffix="</w>"
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(CLIP_WORD_PATTERN), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer
