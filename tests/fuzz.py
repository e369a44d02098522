"""Mutated files against everything that reads a user's files: `python -m tests.fuzz --help`.

Each case follows from its kind, the seed and its number. It is read in a process with bounded
memory and CPU time, and has to end in what the file says, or in a sentence with exit code 2.
"""

import argparse
import csv
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.imaging.codecs import decode_image
from imagekiln.steps.imaging.input_images import (
    MAX_INPUT_PIXELS,
    ImageInspector,
    RejectedImage,
    open_input_image,
)
from imagekiln.steps.job.execution import JobLimits
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prices import read_price_file
from imagekiln.steps.job.reader import read_job, validate_job
from imagekiln.steps.job.tuning_file import parse_tuning_file
from imagekiln.steps.plan.input_files import read_input_files
from imagekiln.steps.plan.input_images import InputImages
from imagekiln.steps.plan.prompt_batches import iter_prompt_batches
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runtime.libraries import silence_libraries
from imagekiln.steps.runtime.sanitize import UNSAFE_IN_LINE
from tests.fuzz_templates import read_template, read_wildcards
from tests.jobs import SHAPES
from tests.mutations import MAKERS, make_file
from tests.texts import chance

MAX_DATA_BYTES = 2 * 2**30
MAX_GROWTH_BYTES = 2**30  # of a case of at most a mebibyte
CASE_CPU_SECONDS = 20
STALLED_SECONDS = 600  # of a case that waits, or computes without an end in a library
CASES_PER_PROCESS = 1000
MAX_ROWS = 300_000
CASES_PER_PLAN = 50  # of which one is planned to its end
MAX_SENTENCE_CHARS = 2100
SUFFIXES = {
    **dict.fromkeys(("job", "prices", "tuning", "recipe"), "yaml"),
    **dict.fromkeys(("template", "wildcards"), "txt"),
    "image": "png",
}
LIMITS = JobLimits(rejected_share=1)


class Defect(Exception):
    """A case that ended as none may."""


@dataclass(slots=True)
class Hunt:
    """What became of the cases: how many ended how, and each that ended as none may."""

    outcomes: Counter[str] = field(default_factory=Counter)
    defects: list[tuple[int, str]] = field(default_factory=list)


# What reads each kind.


def _read_prompts(path: Path, number: int) -> str:
    job = validate_job(
        {"name": "test", "prompts": str(path), "output": str(path.parent / "out"), "model": SHAPES}
    )
    job = job.model_copy(update={"limits": LIMITS})
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        texts = _accepted_prompts(job, Path(folder))
    _require_equal(texts, path)
    if number % CASES_PER_PLAN == 0:
        _plan(job, rows=len(texts))
    return "accepted"


def _accepted_prompts(job: Job, scratch: Path) -> list[str | None]:
    """The prompt of every row, None where it is null or refused."""
    files = read_input_files(job, scratch)
    texts: list[str | None] = []
    with closing(InputImages(scratch)) as images:
        for batch in iter_prompt_batches(files, images):
            batch.validate(full=True)
            texts += batch["prompt"].to_pylist()
            if len(texts) > MAX_ROWS:
                break
    return texts


def _plan(job: Job, rows: int) -> None:
    if rows > MAX_ROWS:
        return
    try:
        planned = make_plan(job)
    except BadInput:
        return
    finally:
        shutil.rmtree(job.output, ignore_errors=True)
    if planned.plan.input.rows != rows:
        raise Defect(f"planned {planned.plan.input.rows} rows of {rows}")


def _require_equal(texts: list[str | None], path: Path) -> None:
    """Raise Defect where a prompt is not what another reader finds in the file."""
    expected = EXPECTED[path.suffix.removeprefix(".")](path)
    if expected is None or len(texts) > MAX_ROWS:
        return
    if len(expected) != len(texts):
        raise Defect(f"{len(texts)} rows of {len(expected)}")
    for row, (text, other) in enumerate(zip(texts, expected, strict=True)):
        if text is not None and text != other:
            raise Defect(f"row {row}: {text!r:.200} for {other!r:.200}")


def _prompt_name(names: list[str]) -> str | None:
    if "prompt" in names:
        return "prompt"
    likely = [name for name in names if name.lower() in {"prompt", "text", "caption"}]
    return likely[0] if len(likely) == 1 else None


def _parquet_prompts(path: Path) -> list[str | None] | None:
    with pq.ParquetFile(path) as parquet:
        name = _prompt_name(parquet.schema_arrow.names)
        return None if name is None else _column_prompts(parquet.read([name])[name])


def _arrow_prompts(path: Path) -> list[str | None] | None:
    content = path.read_bytes()
    opening = pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream
    table = opening(content).read_all()
    name = _prompt_name(table.column_names)
    return None if name is None else _column_prompts(table[name])


def _column_prompts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return texts
    cells = column.cast(pa.large_binary()).to_pylist()
    return [None if cell is None else cell.decode(errors="replace") for cell in cells]


def _delimited_prompts(path: Path) -> list[str | None] | None:
    """By one call of the reader of the whole text, with the separator of the name."""
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    delimiter = "\t" if path.suffix == ".tsv" else ","
    lines = io.StringIO(text, newline="")
    csv.field_size_limit(2**30)
    records = [record for record in csv.reader(lines, delimiter=delimiter) if record]
    name = _prompt_name([name.strip() for name in records[0]])
    if name is None:
        return None
    place = [other.strip() for other in records[0]].index(name)
    return [record[place] or None for record in records[1:]]


def _json_prompts(path: Path) -> list[str | None] | None:
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    lines = io.StringIO(text, newline=None)
    rows = [json.loads(line) for line in lines if line.strip()]
    name = _prompt_name(list(dict.fromkeys(key for row in rows for key in row)))
    if name is None:
        return None
    values = [row.get(name) for row in rows]
    return [
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in values
    ]


EXPECTED: dict[str, Callable[[Path], list[str | None] | None]] = {
    "parquet": _parquet_prompts,
    "arrow": _arrow_prompts,
    "csv": _delimited_prompts,
    "tsv": _delimited_prompts,
    "jsonl": _json_prompts,
}


def _read_job(path: Path, _: int) -> str:
    job = read_job(str(path), (), {})
    if validate_job(json.loads(job.model_dump_json())) != job:
        raise Defect("the job is another one once it was written and read")
    return "accepted"


def _read_prices(path: Path, _: int) -> str:
    read_price_file(str(path))
    return "accepted"


def _read_tuning(path: Path, _: int) -> str:
    parse_tuning_file(path.read_bytes(), str(path))
    return "accepted"


def _inspect_image(path: Path, _: int) -> str:
    content = path.read_bytes()
    with suppress(OSError, ValueError):  # what those expect who read a run's images
        decode_image(content)
    try:
        ImageInspector().inspect(content)
    except RejectedImage as error:
        return error.reason
    image = open_input_image(content)
    if image.mode != "RGB" or image.width * image.height > MAX_INPUT_PIXELS:
        raise Defect(f"an image of mode {image.mode} and {image.size} pixels was accepted")
    return "accepted"


READERS: dict[str, Callable[[Path, int], str]] = {
    **dict.fromkeys(EXPECTED, _read_prompts),
    "job": _read_job,
    "prices": _read_prices,
    "tuning": _read_tuning,
    "image": _inspect_image,
    "recipe": _read_job,
    "template": read_template,
    "wildcards": read_wildcards,
}


# One case, and many.


def case_file(kind: str, seed: int, number: int, folder: Path) -> Path:
    """Write the file of a case."""
    dice = chance(seed * 10**9 + number)
    path = folder / f"case.{SUFFIXES.get(kind, kind)}"
    path.write_bytes(make_file(kind, dice))
    return path


def run_case(kind: str, seed: int, number: int, folder: Path) -> str:
    """How a case ends. Raises Defect where none may end so, and whatever a reader raises."""
    return read_case(kind, case_file(kind, seed, number, folder), number)


def read_case(kind: str, path: Path, number: int) -> str:
    """How the reading of a file ends, by whichever means it was made. Raises as `run_case` does."""
    try:
        return READERS[kind](path, number)
    except BadInput as error:
        _require_sentence(error)
        return "refused"


def _require_sentence(error: KilnError) -> None:
    text = str(error)
    sentences = text.split("\n")
    if len(sentences) != len(error.args) or any(map(UNSAFE_IN_LINE.search, sentences)):
        raise Defect(f"not printable: {text!r:.300}")
    if max(map(len, sentences)) > MAX_SENTENCE_CHARS or len(sentences) > 100:
        raise Defect(f"{len(sentences)} sentences, the longest of {max(map(len, sentences))}")


def _run_cases(
    kind: str, seed: int, first: int, end: int, folder: str, channel: Connection
) -> None:
    """In a process of its own: report the number of each case, then its outcome and defect."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _raise_timeout)
    silence_libraries()  # as the command line does
    output = Path(folder, "output")
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for number in range(first, end):
        channel.send((number, "begun", None))
        channel.send((number, *_guarded_case(kind, seed, number, Path(folder))))
        if output.stat().st_size:
            channel.send((number, "printed", output.read_text(errors="replace")[:300]))
            os.truncate(output, 0)
            os.lseek(1, 0, os.SEEK_SET)
    channel.close()


def _raise_timeout(*_: object) -> None:
    raise TimeoutError


def _guarded_case(kind: str, seed: int, number: int, folder: Path) -> tuple[str, str | None]:
    before = _peak_bytes()
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_SECONDS)
    try:
        outcome = run_case(kind, seed, number, folder)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is what we look for
        return "failed", f"{type(error).__name__}: {error!s:.400}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if _peak_bytes() - before > MAX_GROWTH_BYTES:
        return outcome, f"memory grew by {_peak_bytes() - before} bytes"
    return outcome, None


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def hunt(kind: str, seed: int, count: int, first: int = 0) -> Hunt:
    """Run cases of a kind from the number `first` on, in processes with limits."""
    found = Hunt()
    end = first + count
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        while first < end:
            last = min(first + CASES_PER_PROCESS, end)
            for number, outcome, defect in _reports(kind, seed, first, last, folder):
                first = number + 1
                found.outcomes[outcome] += outcome not in ("begun", "printed")
                if defect is not None:
                    found.defects.append((number, f"{outcome}: {defect}"))
    return found


def _reports(
    kind: str, seed: int, first: int, end: int, folder: str
) -> Iterator[tuple[int, str, str | None]]:
    """What a process says of its cases; of one that ends it, how it ended."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["pandas", "imagekiln.steps.plan.step", "tests.mutations"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_cases, args=(kind, seed, first, end, folder, sender))
    process.start()
    sender.close()
    number = first
    try:
        while receiver.poll(STALLED_SECONDS):
            number, outcome, defect = receiver.recv()
            yield number, outcome, defect
        process.kill()
        yield number, "stalled", f"no end after {STALLED_SECONDS} s"
    except EOFError:
        process.join()
        if process.exitcode:
            yield number, "died", f"exit code {process.exitcode}"
    finally:
        process.join()


def main() -> None:
    """Hunt in every kind, or in some, and print what was found."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="*", default=[*MAKERS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000, help="of each kind")
    parser.add_argument("--keep", type=Path, help="a folder for the files of defects")
    options = parser.parse_args()
    is_clean = True
    for kind in options.kinds:
        found = hunt(kind, options.seed, options.count, options.first)
        print(kind, dict(found.outcomes), flush=True)  # noqa: T201
        for number, defect in found.defects:
            print(f"  {kind} {number}: {defect}", flush=True)  # noqa: T201
            _keep(kind, options.seed, number, options.keep)
        is_clean = is_clean and not found.defects
    sys.exit(not is_clean)


def _keep(kind: str, seed: int, number: int, folder: Path | None) -> None:
    if folder is not None:
        own = folder / f"{kind}-{number}"
        own.mkdir(parents=True, exist_ok=True)
        case_file(kind, seed, number, own)


if __name__ == "__main__":
    main()
