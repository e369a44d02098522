"""What mutated templates and wildcard files have to end in, for `tests/fuzz`.

Whatever a file says, the prompts are the same when they are made again, as many as were counted,
and drawn by the texts of the options alone: not by the order of the lines.
"""

import tempfile
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.job.columns import MAX_PROMPT_CHARS
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptTemplate
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.template_count import count_prompts, load_recipes
from imagekiln.steps.plan.template_rows import read_prompts
from tests.jobs import SHAPES

DRAWN = 5
PLACES = ("Rome", "{a|b} __x__", "")
WILDCARDS = {"x": "one\n2::two\n{a|b} three\n", "y/warm": "red\n", "y/cold": "blue\n__x__\n"}
SPECIAL = frozenset("\\{}|$_%#:\n\r\ufeff")
NEW_OPTION = "newest option of all"
Prompts = list[str | None]


class Changed(Exception):
    """Prompts that are not what they must be."""


def read_template(path: Path, number: int) -> str:
    """Make the prompts of a file with a template, of every row of a small table."""
    text = path.read_bytes().decode(errors="replace")
    folder = write_wildcards(path.parent, WILDCARDS)
    table = path.parent / "places.parquet"
    pq.write_table(pa.table({"place": PLACES}), table)
    job = template_job(text, folder, number, table=str(table))
    prompts = make_prompts(job)
    is_plain = not SPECIAL & set(text) and len(text) <= MAX_PROMPT_CHARS
    if is_plain and settings_of(job).combinations == "all":
        _require(prompts, [text.strip()] * len(PLACES), "a plain text")
    return "accepted"


def read_wildcards(path: Path, number: int) -> str:
    """Make prompts with a wildcard file, then with its lines in another order, and with one more.

    All are drawn, or combined.
    """
    content = path.read_bytes()
    folder = write_wildcards(path.parent, {**WILDCARDS, "z": content})
    template = "__z__ and {2$$__z__|b|c}" if number % 2 else "__z__ {b|c}"
    job = template_job(template, folder, number)
    prompts = make_prompts(job)
    text = content.decode("utf-8-sig")
    if settings_of(job).combinations == "all":
        return "accepted"
    if "\ufeff" in text:  # at the file's start, it says how the file is encoded
        return "accepted"
    lines = list(StringIO(text, newline=None))
    write_wildcards(path.parent, {"z": "\n".join(reversed(lines))})
    _require(make_prompts(job), prompts, "lines in another order")
    write_wildcards(path.parent, {"z": f"{text}\n{NEW_OPTION}\n"})
    for after, before in zip(make_prompts(job), prompts, strict=True):
        if after != before and NEW_OPTION not in (after or ""):
            raise Changed(f"one more line made {before!r:.200} {after!r:.200}")
    return "accepted"


def template_job(text: str, wildcards: Path, number: int, **settings: object) -> Job:
    """A job with this template; every second one draws. Raises BadInput."""
    prompts = {
        "template": text,
        "wildcards": str(wildcards),
        "combinations": DRAWN if number % 2 else "all",
        **settings,
    }
    return validate_job(
        {
            "name": "test",
            "prompts": prompts,
            "output": str(wildcards.parent / "out"),
            "model": SHAPES,
        }
    )


def settings_of(job: Job) -> PromptTemplate:
    """The job's template, which it has."""
    assert isinstance(job.prompts, PromptTemplate)
    return job.prompts


def write_wildcards(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below the folder `wildcards`."""
    root = folder / "wildcards"
    for name, content in files.items():
        path = root / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
    return root


def make_prompts(job: Job) -> Prompts:
    """The prompts of a job. Raises Changed where making them again gives others, or another count.

    Raises BadInput where one of the files is wrong.
    """
    first = _read_table(job)
    second = _read_table(job)
    if not first.equals(second):
        raise Changed("made again, the prompts are others")
    settings = settings_of(job)
    rows = len(PLACES) if settings.table else 1
    count = count_prompts(settings, load_recipes(settings), rows).prompts
    if first.num_rows != count:
        raise Changed(f"{first.num_rows} prompts, and {count} were counted")
    prompts: Prompts = first["prompt"].to_pylist()
    return prompts


def _read_table(job: Job) -> pa.Table:
    with tempfile.TemporaryDirectory(dir=Path(job.output).parent) as folder:
        (file,) = read_prompts(job, Path(folder))
        return pq.read_table(file.source.path)


def _require(prompts: Sequence[str | None], expected: Sequence[str | None], what: str) -> None:
    if [*prompts] != [*expected]:
        raise Changed(f"{what} made {prompts!s:.300} of {expected!s:.300}")
