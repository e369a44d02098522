"""Prompts that stand in the job itself, as a table with one column."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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
    table = pa.table({job.columns.prompt: [*prompts.texts]})
    with translate_errors(str(path)):
        pq.write_table(table, path)
    return SourceFile(LIST_SETTING, path, _hash_texts(prompts))


def store_prompt_list(job: Job) -> Job:
    """The job with its prompts in a file under its output, if they stand in the job itself.

    No prompt travels in a workflow. Raises BadInput, TryAgain.
    """
    if not isinstance(job.prompts, PromptList):
        return job
    store = open_store(job.output)
    key = prompt_list_key(_hash_texts(job.prompts))
    create_once(store, key, to_parquet(pa.table({job.columns.prompt: [*job.prompts.texts]})))
    return job.model_copy(update={"prompts": store.uri_of(key)})


def _hash_texts(prompts: PromptList) -> str:
    content = "\0".join(prompts.texts)
    return hashlib.sha256(content.encode()).hexdigest()
