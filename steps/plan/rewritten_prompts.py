"""The prompts of a job as a language model rewrote them, in the place of those that were read.

Planning loads no language model. It reads the texts that are committed under the output, or has
them made first by whoever calls it.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import MAX_PROMPT_CHARS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import REWRITE_COLUMNS
from imagekiln.steps.plan.column_readers import read_texts
from imagekiln.steps.plan.input_files import InputFile, PromptTexts, iter_file_columns
from imagekiln.steps.plan.rewriting import Rewriting, RewrittenText, open_rewriting
from imagekiln.steps.runs.plan import RewriteFacts

MAX_PROMPTS = 1_000_000  # distinct ones of a job, which are held in memory with their texts
# Makes all texts of these prompts; None where nobody here does.
PromptRewriter: TypeAlias = Callable[[Job, set[str]], None]


@dataclass(frozen=True, slots=True)
class RewrittenInput:
    """The files with the prompts as they are drawn, and what the plan says of their texts.

    `missing` counts the prompts that are still to be rewritten, which no plan has.
    """

    files: tuple[InputFile, ...]
    facts: RewriteFacts | None = None
    missing: int = 0


def rewrite_input(
    job: Job, files: tuple[InputFile, ...], rewriter: PromptRewriter | None = None
) -> RewrittenInput:
    """The files with rewritten prompts, if the job asks for them.

    What is not rewritten yet is made by `rewriter`. Without one, it raises BadInput.
    """
    rewritten = rewrite_for_estimate(job, files)
    if rewritten.missing and rewriter is not None:
        rewriter(job, collect_prompts(files))
        rewritten = rewrite_for_estimate(job, files)
    if rewritten.missing:
        raise BadInput(
            f"{job.output}: lacks {rewritten.missing} rewritten prompts of the job, and planning "
            "rewrites none. First type `imagekiln rewrite JOB` where the language model can run, "
            "or `imagekiln submit JOB`, whose workflow does it."
        )
    return rewritten


def rewrite_for_estimate(job: Job, files: tuple[InputFile, ...]) -> RewrittenInput:
    """The files with rewritten prompts, as far as there are any. The others stay as they are."""
    settings = job.rewrite
    if settings is None:
        return RewrittenInput(files)
    prompts = collect_prompts(files)
    rewriting = open_rewriting(job, settings)
    texts = read_texts_of(rewriting, prompts)
    digest = hashlib.sha256()
    for prompt in sorted(texts):  # whatever the order of rows
        rewritten = texts[prompt]
        line = json.dumps([prompt, rewritten.text, rewritten.end])
        digest.update(line.encode())
    prompt_texts = PromptTexts(texts, sha256=digest.hexdigest(), appends=settings.append)
    columns = [pa.field(name, pa.string()) for name in REWRITE_COLUMNS]
    schema = pa.schema([*files[0].passthrough, *columns])
    files = tuple(replace(file, passthrough=schema, prompt_texts=prompt_texts) for file in files)
    model = rewriting.read_model()
    facts = None
    if model is not None:
        facts = RewriteFacts(rewriting.folder, model.digest, len(prompts), prompt_texts.sha256)
    return RewrittenInput(files, facts, missing=len(prompts) - len(texts))


def collect_prompts(files: tuple[InputFile, ...]) -> set[str]:
    """The distinct prompts of rows that are not rejected for their prompt. Raises BadInput."""
    prompts: set[str] = set()
    for file in files:
        name = file.column_names["prompt"]
        where = f"{file.source.uri}: column {name!r}"
        for batch in iter_file_columns(file, [name]):
            cells = read_texts(batch.column(name), where)
            drawable = _drawable_prompts(cells.values)
            prompts.update(drawable.to_pylist())
        if len(prompts) > MAX_PROMPTS:
            raise BadInput(
                f"{file.source.uri}: rewrite takes at most {MAX_PROMPTS} different prompts of a "
                "job, and there are more. Divide them among several jobs."
            )
    return prompts


def read_texts_of(rewriting: Rewriting, prompts: set[str]) -> dict[str, RewrittenText]:
    """The texts of these prompts that are committed."""
    texts: dict[str, RewrittenText] = {}
    for part, own in rewriting.divide(prompts):
        part_texts = rewriting.read_part(part)
        if part_texts is not None:
            pairs = zip(part.prompts, part_texts, strict=True)
            texts.update((prompt, text) for prompt, text in pairs if prompt in own)
    return texts


def _drawable_prompts(cells: pa.Array) -> pa.Array:
    """The distinct texts that are neither null nor blank nor too long."""
    texts = pc.unique(cells.drop_null())
    trimmed = pc.utf8_trim_whitespace(texts)
    has_content = pc.not_equal(trimmed, "")
    lengths = pc.utf8_length(texts)
    fits = pc.less_equal(lengths, MAX_PROMPT_CHARS)
    return texts.filter(pc.and_(has_content, fits))
