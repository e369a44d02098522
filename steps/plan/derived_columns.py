"""Columns that planning adds to each prompt row: truncation by the model, and LoRAs.

Tokenizers split at whitespace first, so a prompt has as many tokens as its words together. Words
repeat and prompts do not. Counting each word once is about ten times faster than tokenizing every
prompt.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import MAX_PROMPT_CHARS
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS, lora_key, parse_loras

MAX_CACHED_LORA_TEXTS = 100_000
LORA_COLUMNS = ("lora_names", "lora_key", "lora_fault")  # all null in a row without LoRAs
DERIVED_FIELDS = (
    pa.field("truncated", pa.bool_()),
    *(pa.field(name, pa.string()) for name in LORA_COLUMNS),
)


class DerivedColumns:
    """The derived columns of a job, DERIVED_FIELDS, for batches of prompt rows."""

    def __init__(
        self,
        models: Sequence[Path],
        default_loras: str,
        lora_digests: Mapping[str, str],
    ) -> None:
        """Read the tokenizers of the models in these folders; parse the job's default LoRAs.

        Raises BadInput on a damaged tokenizer or an invalid default.
        """
        self._lengths = [PromptLengths(model) for model in models]
        self._loras = LoraColumnReader(default_loras, lora_digests)

    def append_to(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the derived columns appended."""
        prompts = batch.column("prompt")
        # Longer prompts are rejected. Tokenizing them could take unbounded time and memory.
        is_short = pc.less_equal(pc.utf8_length(prompts), MAX_PROMPT_CHARS)
        prompts = pc.if_else(is_short, prompts, None)
        # A prompt counts if any of the models truncates it.
        by_model = [model.find_truncated(prompts) for model in self._lengths]
        truncated = reduce(pc.or_kleene, by_model)
        columns = [*batch.columns, truncated, *self._loras.read(batch.column("loras"))]
        schema = pa.schema([*batch.schema, *DERIVED_FIELDS])
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class LoraColumnReader:
    """Parser of the `loras` column. Null is the job's default, an empty string no LoRA."""

    def __init__(self, default: str, digests: Mapping[str, str]) -> None:
        """Take the job's default and the digest of each of its LoRAs.

        Raises BadInput on an invalid default.
        """
        self._digests = digests
        self._parse_cached = lru_cache(MAX_CACHED_LORA_TEXTS)(self._parse)
        if reason := parse_loras(default, digests).rejection:
            names = ", ".join(sorted(digests)) or "none"
            raise BadInput(
                f"defaults.loras {LORA_REJECTION_TEXTS[reason]}; model.loras has {names}. "
                "Correct it."
            )
        self._default = default

    def read(self, column: pa.Array) -> tuple[pa.Array, ...]:
        """Build LORA_COLUMNS: the canonical form, the key that is part of image_id, the fault."""
        encoded = column.dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary.to_pylist()
        parsed = []
        for text in texts:
            text = self._default if text is None else text
            parsed.append(self._parse_cached(text))
        by_column = zip(*parsed, strict=True)
        columns = (pa.array(values, pa.string()) for values in by_column)
        return tuple(values.take(encoded.indices) for values in columns)

    def _parse(self, text: str) -> tuple[str | None, ...]:
        parsed = parse_loras(text, self._digests)
        key = parsed.canonical and lora_key(parsed.canonical, self._digests)
        return parsed.canonical, key, parsed.rejection


MAX_CACHED_WORDS = 250_000
MAX_CACHED_WORD_CHARS = 40  # longer words rarely repeat
WORDS_PER_BATCH = 256
UNKNOWN_LENGTH = -1
NO_TOKEN_LIMIT = 1_000_000  # tokenizers without a limit state 1e30
CLIP_SPECIAL_TOKENS = 2
CLIP_WORD_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
Int64Array = npt.NDArray[np.int64]


class PromptLengths:
    """Token counter for prompts, with the tokenizer of the model that has the highest limit."""

    def __init__(self, model: Path) -> None:
        """Load the tokenizers of a model folder. Raises BadInput if one is damaged."""
        self._words: dict[str, int] = {}
        self._limit: int | None = None  # None without a tokenizer
        self._tokenizer = Tokenizer(BPE())
        tokenizers = [
            _load_tokenizer(folder)
            for folder in sorted(model.glob("tokenizer*"))
            if (folder / "tokenizer.json").is_file() or (folder / "merges.txt").is_file()
        ]
        if tokenizers:
            self._limit, self._tokenizer = max(tokenizers, key=lambda loaded: loaded[0])

    def find_truncated(self, prompts: pa.Array) -> pa.Array:
        """Return a mask of the prompts that the model truncates; null without a tokenizer."""
        if self._limit is None:
            return pa.nulls(len(prompts), pa.bool_())
        # No token is shorter than a byte, so short prompts need no counting.
        is_long = pc.greater(pc.binary_length(prompts), self._limit)
        is_long = pc.fill_null(is_long, False)
        long_prompts = prompts.filter(is_long)
        exceeds = self._exceeds_limit(long_prompts, self._limit)
        return pc.replace_with_mask(is_long, is_long, pa.array(exceeds))

    def _exceeds_limit(self, prompts: pa.Array, limit: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the prompts with more than `limit` tokens.

        Most words are cached. Other words are tokenized only for prompts that may be too long.
        """
        # Splitting at spaces alone is three times faster than splitting at all whitespace. The
        # tokenizer splits words that contain other whitespace.
        split = pc.split_pattern(prompts, " ")
        offsets = split.offsets.to_numpy()
        encoded = split.flatten().dictionary_encode()
        words = encoded.dictionary
        indices = encoded.indices.to_numpy()

        cached = map(self._words.get, words.to_pylist(), repeat(UNKNOWN_LENGTH))
        lengths = np.fromiter(cached, np.int64, len(words))
        unknown = np.flatnonzero(lengths == UNKNOWN_LENGTH)
        lengths[unknown] = _max_tokens(words.take(pa.array(unknown)), limit)
        exceeds = _sum_slices(lengths[indices], offsets) > limit
        # If a prompt is within the limit even by the upper bounds, its words need no tokenizing.
        is_open_word = np.repeat(exceeds, np.diff(offsets))
        needed = np.intersect1d(indices[is_open_word], unknown)
        needed_words = words.take(pa.array(needed))
        lengths[needed] = self._tokenize_words(needed_words.to_pylist())
        return _sum_slices(lengths[indices], offsets) > limit

    def _tokenize_words(self, words: list[str]) -> list[int]:
        lengths: list[int] = []
        # A token takes some hundred bytes while it is counted, and a prompt without spaces is one
        # long word.
        for start in range(0, len(words), WORDS_PER_BATCH):
            batch = words[start : start + WORDS_PER_BATCH]
            encodings = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            lengths.extend(map(len, encodings))
        if len(self._words) + len(words) > MAX_CACHED_WORDS:
            self._words.clear()
        for word, length in zip(words, lengths, strict=True):
            if len(word) <= MAX_CACHED_WORD_CHARS:
                self._words[word] = length
        return lengths


def _sum_slices(values: Int64Array, offsets: npt.NDArray[np.int32]) -> Int64Array:
    if len(offsets) == 1:
        return np.zeros(0, np.int64)
    sums: Int64Array = np.add.reduceat(values, offsets[:-1], dtype=np.int64)
    return sums


def _max_tokens(words: pa.Array, limit: int) -> Int64Array:
    """Return an upper bound of tokens per word: one per byte, and one that begins the word.

    The bound of words beyond ASCII exceeds `limit`, since normalization may lengthen them.
    """
    lengths = pc.binary_length(words).to_numpy()
    lengths = lengths.astype(np.int64)
    is_ascii = pc.string_is_ascii(words).to_numpy(zero_copy_only=False)
    return np.where(is_ascii, lengths + 1, limit + 1)


def _load_tokenizer(folder: Path) -> tuple[int, Tokenizer]:
    """Load the tokenizer in `folder`. Returns the maximum prompt tokens, and the tokenizer."""
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        limit = min(int(settings.get("model_max_length", NO_TOKEN_LIMIT)), NO_TOKEN_LIMIT)
        if not (folder / "tokenizer.json").is_file():
            return limit - CLIP_SPECIAL_TOKENS, _load_clip_tokenizer(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception
        raise BadInput(f"{folder}: is no tokenizer ({error}). Save the model again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return limit - tokenizer.num_special_tokens_to_add(is_pair=False), tokenizer


def _load_clip_tokenizer(folder: Path) -> Tokenizer:
    """Build CLIP's tokenizer from vocabulary and merges; many older models ship nothing else."""
    vocabulary = str(folder / "vocab.json")
    merges = str(folder / "merges.txt")
    tokenizer = Tokenizer(BPE.from_file(vocabulary, merges, end_of_word_suffix="</w>"))
    steps = [normalizers.NFC(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    words = pre_tokenizers.Split(
        Regex(CLIP_WORD_PATTERN),
        behavior="removed",
        invert=True,
    )
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    return tokenizer
