"""What a language model made of prompts, under a job's output: written once, and read by its plans.

A folder belongs to the settings that decide the texts. In it, `rewrite.json` freezes the model's
commit or files, numbered lists freeze the prompts and with them the names of parts, and each part
is one commit. A job with further prompts appends a list of those that no list has.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field, TypeAdapter

from imagekiln.steps.errors import Missing, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import RewriteSettings
from imagekiln.steps.runs.keys import rewrite_key
from imagekiln.steps.runs.tables import damage_error, read_table, to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, require_conditional_writes

LIST_PROMPTS = 65_536
DIGEST_DIGITS = 16
MODEL_NAME = "rewrite.json"
# Whole: the model ended it. Cut: at the most tokens. Unread: the prompt is too long for the model.
Ending = Literal["whole", "cut", "unread"]
LIST_SCHEMA = pa.schema([pa.field("prompt", pa.string())])
PART_SCHEMA = pa.schema([*LIST_SCHEMA, pa.field("text", pa.string()), pa.field("end", pa.string())])


@dataclass(frozen=True, slots=True)
class RewrittenText:
    """What the model made of a prompt, and how it ended."""

    text: str
    end: Ending


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """The language model of all texts: its commit, if it is on a hub, and a digest of its files.

    A part has `part_prompts` prompts of its list, the last of a list perhaps fewer.
    """

    id: str
    revision: str | None
    digest: str
    part_prompts: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class RewritePart:
    """The prompts that one commit rewrites, and its key."""

    key: str
    prompts: tuple[str, ...]


FROZEN_MODEL_TYPE_ADAPTER: TypeAdapter[FrozenModel] = TypeAdapter(FrozenModel)


def digest_settings(settings: RewriteSettings) -> str:
    """Identifies the texts of a rewrite; a branch or tag counts by its name, a folder by its path.

    So what was rewritten stays where a branch moves, and is read where the model is not.
    """
    content = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:DIGEST_DIGITS]


class Rewriting:
    """The lists and parts of one rewrite. Where storage fails, every method raises a KilnError."""

    def __init__(self, store: Store, digest: str) -> None:
        """Take the output's store; nothing is read yet."""
        self._store = store
        self._digest = digest
        self.folder = rewrite_key(digest, "").rstrip("/")

    @property
    def uri(self) -> str:
        """The folder, for messages."""
        return self._store.uri_of(self.folder)

    def read_model(self) -> FrozenModel | None:
        """The model that was frozen; None if nothing was rewritten yet."""
        try:
            return FROZEN_MODEL_TYPE_ADAPTER.validate_json(self._store.read(self._key(MODEL_NAME)))
        except Missing:
            return None

    def freeze_model(self, model: FrozenModel, *, check_store: bool) -> None:
        """Write the model, unless it is frozen. Raises TryAgain where another was meanwhile.

        With `check_store`, a store that ignores conditional writes is refused.
        """
        key = self._key(MODEL_NAME)
        content = FROZEN_MODEL_TYPE_ADAPTER.dump_json(model) + b"\n"
        if self._store.create(key, content) and check_store:
            require_conditional_writes(self._store, key, content)
        if self.read_model() != model:
            raise TryAgain(
                f"{self._store.uri_of(key)}: another process began at the same time with other "
                "files of the model. Run the command again."
            )

    def iter_parts(self) -> Iterator[RewritePart]:
        """Every part of every list, in the order of their numbers; none before there is a model."""
        model = self.read_model()
        if model is None:
            return
        size = model.part_prompts
        for number in count():
            prompts = self._read_list(number)
            if prompts is None:
                return
            for place, start in enumerate(range(0, len(prompts), size)):
                key = self._key(f"texts/{number:05d}-{place:04d}.parquet")
                yield RewritePart(key, prompts[start : start + size])

    def divide(self, prompts: set[str]) -> Iterator[tuple[RewritePart, set[str]]]:
        """Each part that decides the texts of some of these prompts, with those prompts.

        The first list that has a prompt decides.
        """
        left = set(prompts)
        for part in self.iter_parts():
            own = left.intersection(part.prompts)
            if own:
                left.difference_update(own)
                yield part, own

    def append_lists(self, prompts: set[str]) -> None:
        """Freeze lists of these prompts, except those that others have listed meanwhile.

        Prompts of about one length are neighbors, so that batches have little padding.
        """
        missing = set(prompts)
        for number in count():
            listed = self._read_list(number)
            if listed is None:
                missing_in_order = sorted(missing, key=lambda prompt: (len(prompt), prompt))
                if not missing_in_order:
                    return
                listed = tuple(missing_in_order[:LIST_PROMPTS])
                table = pa.table({"prompt": listed}, LIST_SCHEMA)
                if not self._store.create(self._list_key(number), to_parquet(table)):
                    listed = self._read_list(number) or ()
            missing.difference_update(listed)

    def has_part(self, part: RewritePart) -> bool:
        """Whether the part is committed. Raises BadInput where it is damaged."""
        return self.read_part(part) is not None

    def commit_part(self, part: RewritePart, texts: Sequence[RewrittenText]) -> None:
        """Commit the texts of a part. The first writer wins."""
        columns = {
            "prompt": part.prompts,
            "text": [text.text for text in texts],
            "end": [text.end for text in texts],
        }
        content = to_parquet(pa.table(columns, PART_SCHEMA))
        self._store.create(part.key, content)

    def read_part(self, part: RewritePart) -> list[RewrittenText] | None:
        """The texts of a part in the order of its prompts; None if it is not committed.

        Raises BadInput if the object is damaged, or has the texts of other prompts.
        """
        try:
            table = read_table(self._store, part.key)
        except Missing:
            return None
        if table.schema != PART_SCHEMA or tuple(table["prompt"].to_pylist()) != part.prompts:
            where = self._store.uri_of(part.key)
            raise damage_error(where, ValueError("it has other columns or prompts"))
        pairs = zip(
            table["text"].to_pylist(),
            table["end"].to_pylist(),
            strict=True,
        )
        return [RewrittenText(text, end) for text, end in pairs]

    def _read_list(self, number: int) -> tuple[str, ...] | None:
        try:
            table = read_table(self._store, self._list_key(number))
        except Missing:
            return None
        return tuple(table["prompt"].to_pylist())

    def _list_key(self, number: int) -> str:
        return self._key(f"prompts/{number:05d}.parquet")

    def _key(self, name: str) -> str:
        return rewrite_key(self._digest, name)


def open_rewriting(job: Job, settings: RewriteSettings) -> Rewriting:
    """What was rewritten for a job so far, without any request."""
    return Rewriting(open_store(job.output.rstrip("/")), digest_settings(settings))
