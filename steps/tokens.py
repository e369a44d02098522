"""Which prompts the model will cut: more tokens than its text encoder reads.

Tokenisers split at white space first, so a prompt's tokens are the sum of its words'. Words repeat, prompts do
not: counting each word once is some ten times faster than tokenising every prompt.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from imagekiln.steps.errors import BadInput

REMEMBERED_WORDS = 1_000_000
UNSET = 1_000_000  # tokenisers without a limit say 1e30
CLIP_SPECIALS = 2
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
        longest = pc.max(pc.binary_length(prompts)).as_py()
        if longest is None or longest <= self._limit:
            return long
        return pa.array(self._counts(prompts) > self._limit)

    def _counts(self, prompts: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        words = pc.utf8_split_whitespace(prompts)
        each = words.flatten().dictionary_encode()
        totals = np.concatenate([[0], np.cumsum(self._lengths(each.dictionary)[each.indices.to_numpy()])])
        offsets = words.offsets.to_numpy()
        counts: np.ndarray[tuple[int], np.dtype[np.int64]] = totals[offsets[1:]] - totals[offsets[:-1]]
        return counts

    def _lengths(self, words: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        texts: list[str] = words.to_pylist()
        new = [text for text in texts if text not in self._words]
        if len(self._words) + len(new) > REMEMBERED_WORDS:
            self._words, new = {}, texts
        if new:
            encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
            self._words.update(zip(new, map(len, encoded), strict=True))
        return np.array([self._words[text] for text in texts], dtype=np.int64)


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
