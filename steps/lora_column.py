"""The column `loras` of the prompt rows: each distinct text is read once, however many rows have it."""

from collections.abc import Mapping

import pyarrow as pa

from imagekiln.steps import loras
from imagekiln.steps.errors import BadInput
from imagekiln.steps.loras import LORA_REJECTION_TEXTS

MAX_CACHED_TEXTS = 100_000
LORA_COLUMNS = ("lora_names", "lora_key", "lora_fault")  # all null where a row asks for none


class LoraColumnReader:
    """Turns texts into what a plan keeps of them. A null is the job's default, an empty text is no LoRA."""

    def __init__(self, default: str, digests: Mapping[str, str]) -> None:
        """Take the job's default and the digest of each of its LoRAs. Raises BadInput on a default that is wrong."""
        self._digests = digests
        self._known: dict[str | None, tuple[str | None, ...]] = {}
        if fault := loras.parse_loras(default, digests).rejection:
            known = ", ".join(sorted(digests)) or "none"
            raise BadInput(f"defaults.loras {LORA_REJECTION_TEXTS[fault]}; model.loras has {known}. Correct it.")
        self._default = self._parse(default)

    def read(self, column: pa.Array) -> tuple[pa.Array, ...]:
        """The canonical text, the key that goes into image_id, and the fault of each row, as LORA_COLUMNS."""
        each = column.dictionary_encode(null_encoding="encode")
        read = [self._look_up(text) for text in each.dictionary.to_pylist()]
        return tuple(pa.array(values, pa.string()).take(each.indices) for values in zip(*read, strict=True))

    def _look_up(self, text: str | None) -> tuple[str | None, ...]:
        if text is None:
            return self._default
        if text not in self._known:
            if len(self._known) >= MAX_CACHED_TEXTS:
                self._known.clear()
            self._known[text] = self._parse(text)
        return self._known[text]

    def _parse(self, text: str) -> tuple[str | None, ...]:
        found = loras.parse_loras(text, self._digests)
        return found.canonical, found.canonical and loras.lora_key(found.canonical, self._digests), found.rejection
