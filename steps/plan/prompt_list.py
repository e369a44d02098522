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
    content, digest = _to_parquet(job, prompts)
    with translate_errors(str(path)):
        path.write_bytes(content)
    return SourceFile(LIST_SETTING, path, digest)


def store_prompt_list(job: Job, prompts: PromptList) -> Job:
    """The job with these prompts of its own in a file under its output. Raises BadInput, TryAgain.

    No prompt travels in a workflow.
    """
    content, digest = _to_parquet(job, prompts)
    store = open_store(job.output)
    key = prompt_list_key(digest)
    create_once(store, key, content)
    return job.model_copy(update={"prompts": store.uri_of(key)})


def _to_parquet(job: Job, prompts: PromptList) -> tuple[bytes, str]:
    """The content of a file with the prompts, and its hash."""
    texts = [*prompts.texts]
    table = pa.table({job.columns.prompt: texts})
    content = to_parquet(table)
    return content, hashlib.sha256(content).hexdigest()
