"""A finished run in which a stranger changed one object, and the commands that read it.

Each change follows from its number, so that a failure can be repeated:
`python -m tests.hostile --first 17 --count 1`.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from imagekiln.steps.aggregate.preview import judge_first_shard
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.dataset import open_dataset
from imagekiln.steps.errors import KilnError
from imagekiln.steps.export.step import export
from imagekiln.steps.gallery.answers import answer
from imagekiln.steps.gallery.gallery import open_gallery
from imagekiln.steps.gallery.queries import PageQuery
from imagekiln.steps.maintain.diff import diff
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.reproduce import find_row
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import image_rows
from imagekiln.steps.runs.parts import OFFSETS_METADATA
from imagekiln.steps.runs.rounds import open_run
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.sidecar import to_rows
from tests import jobs, models, runs
from tests.texts import chance

SECRET = b"a file of the user's, which is none of the run's"
FORMATS = ("parquet", "webdataset", "files")
BROWSED_ONE_IN = 4  # changes: the gallery takes as long as all others together
COLUMNS = {
    "prompt": [f"a red circle {place}" for place in range(6)],
    "id": [f"row-{place}" for place in range(6)],
    "topic": ["shapes"] * 6,
}
NAMED_FOLDERS = ("run", "export")  # which users name, and which may be links therefore
MAX_LINE_CHARS = 1000
DEEP = "@deep@"
STRANGE: tuple[object, ...] = (
    None, True, -1, 0, 0.5, 10**12, 2**63, float("nan"), float("inf"), "", "x", "\ud800",
    "../../secret", "/etc/passwd", "s3://elsewhere/secret", "A" * 10**6, [], {}, [[]], DEEP,
)  # fmt: skip
STRANGE_COLUMNS: tuple[object, ...] = (
    None, "x", "../../secret", "/etc/passwd", "A" * 10**5, -1, 0, 10**12, float("nan"), b"\xff",
    True, ["x"], {"a": 1},
)  # fmt: skip
STRANGE_OFFSETS = (
    b"", b"x", b"5", b"{}", b"[-7, -7]", b"[1000000000000, 4]", b"[1.5, true]", b'["a", null]',
    b"[" * 10**5, b"[" + b"9" * 400 + b"]", b"[NaN]",
)  # fmt: skip


@cache
def finished_output(image_format: str) -> Path:
    """A folder with an output, whose run `run` has a round, and with a file that is the user's."""
    folder = models.scratch("hostile")
    settings: dict[str, object] = {
        "format": image_format,
        "shard": {"images": 4},
        "part": {"images": 2},
        "batch": {"images": 2},
        "carry": ["topic"],
        "limits": {"failed_share": 1},
        "gates": {"near_duplicate": {"distance": 2}},
    }
    for run_id in ("run", "other"):
        run = jobs.plan(folder, COLUMNS, run_id=run_id, **settings)
        runs.fill(run, {1: runs.not_ok(0)})
        aggregate(run.uri)
        retry_round = runs.begin_round(run)
        runs.fill(PlanResult(retry_round.plan, retry_round.store.uri, adopted=False))
        aggregate(run.uri)
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_bytes(SECRET)
    return folder


def try_commands(
    image_format: str, edit: Callable[[Path], str], scratch: Path, *, browses: bool
) -> list[str]:
    """Change a run, and read it by all commands. Returns what none of them may do."""
    folder = shutil.copytree(finished_output(image_format), scratch / "user", dirs_exist_ok=True)
    output = folder / "out"
    what = f"{image_format}, {edit(output)}"
    others = {name: jobs.files(folder / name) for name in ("outside", "out/other")}

    wrong = []
    for name, command in commands(output):
        if name == "gallery" and not browses:
            continue
        try:
            command()
        except KilnError as error:
            longest = max(map(len, str(error).splitlines()))
            if longest > MAX_LINE_CHARS:
                wrong.append(f"{what}: {name} writes a line of {longest} characters")
        except BaseException as error:  # noqa: BLE001  # pytest.fail would hide what else is wrong
            wrong.append(f"{what}: {name} raises {type(error).__name__} {str(error)[:200]}")
    for name, content in others.items():
        if jobs.files(folder / name) != content:
            wrong.append(f"{what}: {name} was changed")
    return wrong


def change(output: Path, number: int) -> str:
    """Change one object of the run in `output`/run, and say what was changed."""
    dice = chance(number)
    kinds: list[tuple[Callable[[Path, random.Random], str], str]] = [
        (change_json, "*.json"),
        (change_table, "*.parquet"),
        (replace_object, "*"),
    ]
    edit, pattern = dice.choice(kinds)
    objects = sorted(path for path in (output / "run").rglob(pattern) if path.is_file())
    path = dice.choice(objects)
    what = edit(path, dice)
    _fit_hashes(path)
    return f"change {number} of {path.relative_to(output)}: {what}"


def drop_column(output: Path, table: Path, name: str) -> str:
    """Leave this column out of a table, whose path is relative to the output."""
    path = output / table
    _exchange_table(path, pq.read_table(path).drop_columns([name]))
    return f"{table} without {name}"


def commands(output: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What reads a run, and what it is called. Those that write come last."""
    run = str(output / "run")
    yield "runs", lambda: list_runs(str(output))
    yield "verify", lambda: verify(run)
    yield "dataset", lambda: _read_dataset(run)
    yield "gallery", lambda: _browse(str(output))
    yield "diff", lambda: diff(run, str(output / "other"), str(output.parent / "page"))
    yield "reproduce", lambda: find_row(open_run(run), "row-1")
    yield "gc", lambda: gc(str(output), 0)
    yield "preview", lambda: judge_first_shard(run)
    yield "export", lambda: export(run, str(output.parent / "exported"))
    yield "generate", lambda: _prepare_to_generate(run)
    yield "retry", lambda: _plan_round(run)
    yield "aggregate", lambda: aggregate(run)
    yield "forget", lambda: forget(run, ForgetSelection(prompt_parts=("circle 1",)), remove=True)
    yield "gc --remove", lambda: gc(str(output), 0, remove=True)


def _read_dataset(run: str) -> None:
    for batch in open_dataset(run).to_batches():
        for row in to_rows(batch):
            assert SECRET not in row["image"]["bytes"]


def _browse(output: str) -> None:
    """Ask the gallery for all that its page shows."""
    with open_gallery(output) as gallery:
        state = gallery.wait()
        tiles = gallery.page(PageQuery())
        paths = ["/state", "/count", "/trends"]
        for tile in tiles:
            place = f"{tile.run}/{tile.image_id}"
            paths += [f"/{noun}/{place}" for noun in ("image", "thumbnail", "row")]
        for path in paths:
            reply = answer(gallery, b"", path, {"number": "0"})
            assert SECRET not in reply.content
        assert state.is_complete


def _prepare_to_generate(run: str) -> None:
    """All that generate does before it loads a model."""
    opened = open_run(run)
    for number in range(len(opened.plan.shards)):
        parts = read_shard(opened.store, opened.plan, number)
        for part in parts:
            image_rows(part.rows)
        missing = missing_parts(opened.store, parts)
        recover_parts(opened.store, format_of(opened.plan.job), missing)


def _plan_round(run: str) -> None:
    opened = open_run(run)
    plan_next_round(opened.store, opened.plan)


def change_json(path: Path, dice: random.Random) -> str:
    """Put something strange in the place of one value, at any depth."""
    document = json.loads(path.read_bytes())
    places = list(_places(document))
    if not places:
        path.write_bytes(b"")
        return "empty"
    holder, key = dice.choice(places)
    value = dice.choice(STRANGE)
    if dice.random() < 0.1:
        del holder[key]
    else:
        holder[key] = value
    text = json.dumps(document).replace(f'"{DEEP}"', "[" * 10**5 + "]" * 10**5)
    path.write_text(text, encoding="utf-8")
    return f"{key} = {str(value)[:30]}"


def _places(document: Any) -> Iterator[tuple[Any, str | int]]:  # noqa: ANN401  # any JSON
    """Every object and list in a document with each of its keys, at any depth."""
    entries: Iterable[tuple[str | int, Any]] = ()
    if isinstance(document, dict):
        entries = document.items()
    elif isinstance(document, list):
        entries = enumerate(document)
    for key, value in entries:
        yield document, key
        yield from _places(value)


def change_table(path: Path, dice: random.Random) -> str:
    """Change a column, the rows, the offsets, or some bytes of a Parquet object."""
    table = pq.read_table(path)
    metadata = dict(pq.ParquetFile(path).metadata.metadata or {})
    kinds = ["column", "column", "column", "no column", "rows", "offsets", "bytes", "footer"]
    kind = dice.choice(kinds)
    if kind in ("bytes", "footer"):
        content = bytearray(path.read_bytes())
        first = 0 if kind == "bytes" else max(0, len(content) - 600)
        for _ in range(dice.randint(1, 8)):
            content[dice.randrange(first, len(content))] = dice.randrange(256)
        path.write_bytes(content)
        return kind
    what = kind
    if kind == "column":
        index = dice.randrange(table.num_columns)
        value = dice.choice(STRANGE_COLUMNS)
        column = pa.array([value] * table.num_rows)
        if dice.random() < 0.3:
            column = pa.nulls(table.num_rows, table.schema.field(index).type)
        what = f"{table.column_names[index]} = {str(value)[:30]}"
        table = table.set_column(index, table.column_names[index], column)
    elif kind == "no column":
        name = dice.choice(table.column_names)
        what = f"no {name}"
        table = table.drop_columns([name])
    elif kind == "rows":
        table = dice.choice([table.slice(1), table.slice(0, 0), pa.concat_tables([table, table])])
    else:
        metadata[OFFSETS_METADATA] = dice.choice(STRANGE_OFFSETS)
    metadata.pop(b"ARROW:schema", None)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return what


def replace_column(run: Path, name: str, value: pa.Scalar) -> None:
    """Let a column have this value in every row, with its Arrow type, in all tables of a run."""
    for path in sorted(run.rglob("*.parquet")):
        table = pq.read_table(path)
        if name not in table.column_names:
            continue
        index = table.column_names.index(name)
        _exchange_table(path, table.set_column(index, name, pa.repeat(value, table.num_rows)))


def _exchange_table(path: Path, table: pa.Table) -> None:
    """Put a table in the place of another, with its metadata, and a hash in the plan that fits."""
    metadata = dict(pq.ParquetFile(path).metadata.metadata or {})
    metadata.pop(b"ARROW:schema", None)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    _fit_hashes(path)


def replace_object(path: Path, dice: random.Random) -> str:
    """Put a link, a pipe, a folder or nothing in the place of an object, or a link in its folder's.

    The links lead to what is the user's, outside of the output.
    """
    outside = next(parent for parent in path.parents if (parent / "outside").is_dir()) / "outside"
    kind = dice.choice(["link", "device", "pipe", "folder", "absent", "sparse", "linked folder"])
    if kind == "linked folder" and path.parent.name not in NAMED_FOLDERS:
        shutil.rmtree(path.parent)
        path.parent.symlink_to(outside)
        return kind
    path.unlink()
    if kind == "link":
        path.symlink_to(outside / "secret")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 10**13)
    return kind


def _fit_hashes(path: Path) -> None:
    """Let the plan have the hash of a shard that was changed, as who changes it would."""
    plan = path.parent.parent / "plan.json"
    if path.parent.name != "shards" or not path.is_file() or not plan.is_file():
        return
    if path.stat().st_size > 10**9:
        return
    document = json.loads(plan.read_bytes())
    document["shards"][int(path.stem)]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    plan.write_text(json.dumps(document), encoding="utf-8")


def try_changes(numbers: range) -> list[str]:
    """What the commands do wrong with each of these changes."""
    wrong = []
    for number in numbers:
        image_format = FORMATS[number % len(FORMATS)]
        browses = number % BROWSED_ONE_IN == 0
        with tempfile.TemporaryDirectory(prefix="imagekiln-hostile-") as folder:
            edit = partial(change, number=number)
            wrong += try_commands(image_format, edit, Path(folder), browses=browses)
    return wrong


def try_missing_columns(image_format: str) -> list[str]:
    """What the commands do wrong where a table of a run lacks a column, for each of them."""
    output = finished_output(image_format) / "out"
    wrong = []
    for path in sorted((output / "run").rglob("*.parquet")):
        table = path.relative_to(output)
        for name in pq.read_schema(path).names:
            with tempfile.TemporaryDirectory(prefix="imagekiln-hostile-") as folder:
                edit = partial(drop_column, table=table, name=name)
                wrong += try_commands(image_format, edit, Path(folder), browses=False)
    return wrong


def hunt(try_numbers: Callable[[range], list[str]]) -> None:
    """Try as many changes as the command line says, and list what went wrong."""
    parser = argparse.ArgumentParser(description=hunt.__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    last = arguments.first + arguments.count
    for line in try_numbers(range(arguments.first, last)):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    hunt(try_changes)
