"""Prompts that stand in the job itself, as a table with one column."""

import hashlib
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList
from imagekiln.steps.plan.source_files import SourceFile
from imagekiln.steps.runs.keys import prompt_list_key
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import create_once

LIST_SETTING = "prompts.texts"


def write_prompt_list(job: Job, prompts: PromptList, folder: Path) -> SourceFile:
    """Write the prompts as a file in `folder`. Raises TryAgain."""
    path = folder / "prompt-list.parquet"
    content = _to_parquet(job, prompts)
    with translate_errors(str(path)):
        path.write_bytes(content)
    return SourceFile(LIST_SETTING, path, _hash(content))


def store_prompt_list(job: Job) -> Job:
    """The job with its prompts in a file under its output, if they stand in the job itself.

    No prompt travels in a workflow. Raises BadInput, TryAgain.
    """
    if not isinstance(job.prompts, PromptList):
        return job
    content = _to_parquet(job, job.prompts)
    digest = _hash(content)
    key = prompt_list_key(digest)
    store = open_store(job.output)
    create_once(store, key, content)
    uri = store.uri_of(key)
    return job.model_copy(update={"prompts": uri})


def _to_parquet(job: Job, prompts: PromptList) -> bytes:
    texts = [*prompts.texts]
    table = pa.table({job.columns.prompt: texts})
    return to_parquet(table)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
