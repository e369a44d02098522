"""Storage of prompts that a language model rewrote, under a job's output.

Each combination of rewrite settings has a folder. In it, `rewrite.json` freezes the commit or files
of the model. Numbered lists freeze the prompts, and with them the names of parts. Each part is one
commit. A job with new prompts appends a list of them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, TypeAdapter

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job.columns import MAX_PROMPT_CHARS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import REWRITE_COLUMNS, RewriteSettings
from imagekiln.steps.plan.columns import read_texts
from imagekiln.steps.plan.input_files import (
    InputFile,
    PromptTexts,
    RewrittenText,
    iter_file_columns,
)
from imagekiln.steps.runs.keys import rewrite_key
from imagekiln.steps.runs.plan import RewriteFacts
from imagekiln.steps.runs.tables import damage_error, read_table, to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, require_conditional_writes

LIST_PROMPTS = 65_536
DIGEST_DIGITS = 16
MODEL_NAME = "rewrite.json"
LIST_SCHEMA = pa.schema([pa.field("prompt", pa.string())])
PART_SCHEMA = pa.schema([*LIST_SCHEMA, pa.field("text", pa.string()), pa.field("end", pa.string())])
MAX_PROMPTS = 1_000_000  # distinct prompts of a job, held in memory with their rewritten forms
# Rewrites and commits all of the prompts.
PromptRewriter: TypeAlias = Callable[[Job, set[str]], None]


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """The language model of a rewrite, with its commit on a hub and a digest of its files."""

    id: str
    revision: str | None
    digest: str
    part_prompts: Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class RewritePart:
    """A part of a list: the prompts that are rewritten in one commit, and its key."""

    key: str
    prompts: tuple[str, ...]


FROZEN_MODEL_TYPE_ADAPTER: TypeAdapter[FrozenModel] = TypeAdapter(FrozenModel)


def digest_settings(settings: RewriteSettings) -> str:
    """Hash the rewrite settings as the job states them, with a branch as its name.

    Rewritten prompts remain valid after the branch moves, and can be read without the model.
    """
    content = json.dumps(settings.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:DIGEST_DIGITS]


class Rewriting:
    """The lists and parts of one rewrite. All methods raise a KilnError if storage fails."""

    def __init__(self, store: Store, digest: str) -> None:
        """Open the rewrite `digest` in the store of the job's output. Reads nothing yet."""
        self._store = store
        self._digest = digest
        self.folder = rewrite_key(digest, "").rstrip("/")

    @property
    def uri(self) -> str:
        """URI of the folder, for messages."""
        return self._store.uri_of(self.folder)

    def read_model(self) -> FrozenModel | None:
        """Read the frozen model; None if there is none yet."""
        try:
            return FROZEN_MODEL_TYPE_ADAPTER.validate_json(self._store.read(self._key(MODEL_NAME)))
        except Missing:
            return None

    def freeze_model(self, model: FrozenModel, *, check_store: bool) -> None:
        """Freeze the model unless it is frozen already.

        With `check_store`, a store that ignores conditional writes is refused. Raises TryAgain if a
        different model is frozen.
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
        """Yield the parts of all lists in order. There are none before a model is frozen."""
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
        """Yield each part with the `prompts` that it rewrites, each from the first list with it."""
        left = set(prompts)
        for part in self.iter_parts():
            own = left.intersection(part.prompts)
            if own:
                left.difference_update(own)
                yield part, own

    def append_lists(self, prompts: set[str]) -> None:
        """Append lists of the prompts that no list has yet, sorted by length to reduce padding."""
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
        """Return whether the part is committed. Raises BadInput if it is damaged."""
        return self.read_part(part) is not None

    def commit_part(self, part: RewritePart, texts: Sequence[RewrittenText]) -> None:
        """Commit the rewritten prompts of a part. The first writer wins."""
        columns = {
            "prompt": part.prompts,
            "text": [text.text for text in texts],
            "end": [text.end for text in texts],
        }
        content = to_parquet(pa.table(columns, PART_SCHEMA))
        self._store.create(part.key, content)

    def read_part(self, part: RewritePart) -> list[RewrittenText] | None:
        """Read the rewritten prompts of a part; None if it is not committed. Raises BadInput."""
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
    """Open the rewritten prompts of a job. Makes no request."""
    return Rewriting(open_store(job.output.rstrip("/")), digest_settings(settings))


@dataclass(frozen=True, slots=True)
class RewrittenInput:
    """Input files with rewritten prompts, and facts for the plan; `missing` counts the rest."""

    files: tuple[InputFile, ...]
    facts: RewriteFacts | None = None
    missing: int = 0


def rewrite_input(
    job: Job, files: tuple[InputFile, ...], rewriter: PromptRewriter | None = None
) -> RewrittenInput:
    """Apply the rewritten prompts to the files if the job has `rewrite` settings.

    `rewriter` is called first to rewrite missing prompts. Raises BadInput, TryAgain.
    """
    settings = job.rewrite
    if settings is None:
        return RewrittenInput(files)
    prompts = collect_prompts(files)
    if rewriter is not None:
        rewriter(job, prompts)
    rewriting = open_rewriting(job, settings)
    texts = _read_rewritten(rewriting, prompts)
    digest = hashlib.sha256()
    for prompt in sorted(texts):  # independent of the order of rows
        rewritten = texts[prompt]
        digest.update(json.dumps([prompt, rewritten.text, rewritten.end]).encode())
    sha256 = digest.hexdigest()
    prompt_texts = PromptTexts(texts, sha256, appends=settings.append)
    fields = [pa.field(name, pa.string()) for name in REWRITE_COLUMNS]
    schema = pa.schema([*files[0].passthrough, *fields])
    files = tuple(replace(file, passthrough=schema, prompt_texts=prompt_texts) for file in files)
    model = rewriting.read_model()
    facts = None
    if model is not None:
        facts = RewriteFacts(rewriting.folder, model.digest, len(prompts), sha256)
    return RewrittenInput(files, facts, len(prompts) - len(texts))


def collect_prompts(files: tuple[InputFile, ...]) -> set[str]:
    """Collect the distinct valid prompts. Raises BadInput if there are more than MAX_PROMPTS."""
    prompts: set[str] = set()
    for file in files:
        name = file.column_names["prompt"]
        where = f"{file.source.uri}: column {name!r}"
        for batch in iter_file_columns(file, [name]):
            texts = pc.unique(read_texts(batch.column(name), where).values.drop_null())
            has_content = pc.not_equal(pc.utf8_trim_whitespace(texts), "")
            fits = pc.less_equal(pc.utf8_length(texts), MAX_PROMPT_CHARS)
            prompts.update(texts.filter(pc.and_(has_content, fits)).to_pylist())
        if len(prompts) > MAX_PROMPTS:
            raise BadInput(
                f"{file.source.uri}: rewrite takes at most {MAX_PROMPTS} different prompts of a "
                "job, and there are more. Divide them among several jobs."
            )
    return prompts


def _read_rewritten(rewriting: Rewriting, prompts: set[str]) -> dict[str, RewrittenText]:
    """Read the committed rewrites of `prompts`."""
    texts: dict[str, RewrittenText] = {}
    for part, own in rewriting.divide(prompts):
        part_texts = rewriting.read_part(part)
        if part_texts is not None:
            pairs = zip(part.prompts, part_texts, strict=True)
            texts.update((prompt, text) for prompt, text in pairs if prompt in own)
    return texts
