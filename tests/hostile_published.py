"""An export, rewritten prompts and forgotten ids in which a stranger changed one object.

As `tests/hostile` does with a run; `python -m tests.hostile_published --first 17 --count 1`.
"""

import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import KilnError
from imagekiln.steps.export.push import push
from imagekiln.steps.export.removal import remove_from_export
from imagekiln.steps.export.settings import ExportSettings, read_settings
from imagekiln.steps.export.step import export
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.rewriting import FrozenModel, RewrittenText, open_rewriting
from imagekiln.steps.runs.rounds import open_run
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.storage import open_store
from tests import hostile, jobs, models, runs
from tests.dataset_hub import REPOSITORY, TOKEN, DatasetHub, dataset_hub
from tests.hostile import MAX_LINE_CHARS, SECRET, hunt
from tests.texts import chance

FORMATS = ("parquet", "webdataset")
DATASET = f"hf://datasets/{REPOSITORY}"
PROMPTS = ("red", "blue", "green")
REWRITE = {"model": {"id": "org/model", "revision": "0" * 40}}
CHANGED = ("export", "out/_rewritten", "out/run/forgotten")
Command = Callable[[], object]


def settings(file_format: str) -> ExportSettings:
    """Those of all exports here."""
    return read_settings(file_format, partition_by="prompt")


@cache
def published_folder(file_format: str) -> Path:
    """A folder with a run of which an image was forgotten, and with an export of it.

    Prompts that nobody planned yet are rewritten beside the run; `outside` is the user's.
    """
    folder = models.scratch("published")
    run = jobs.plan(folder, {"prompt": PROMPTS, "id": PROMPTS}, run_id="run")
    runs.fill(run)
    aggregate(run.uri)
    target = str(folder / "export")
    export(run.uri, target, settings(file_format))
    forget(run.uri, ForgetSelection(ids=(PROMPTS[0],)), [target], remove=True)

    job = rewritten_job(folder, "unused")
    assert job.rewrite is not None
    rewriting = open_rewriting(job, job.rewrite)
    model = FrozenModel("org/model", "0" * 40, "0" * 64, part_prompts=2)
    rewriting.freeze_model(model, check_store=False)
    rewriting.append_lists(set(PROMPTS))
    for part in rewriting.iter_parts():
        texts = [RewrittenText(f"{prompt} sea", "whole") for prompt in part.prompts]
        rewriting.commit_part(part, texts)
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_bytes(SECRET)
    return folder


def rewritten_job(folder: Path, run_id: str) -> Job:
    """A job whose prompts are rewritten already."""
    return jobs.job(folder, {"prompt": PROMPTS}, run_id=run_id, rewrite=REWRITE)


def try_commands(number: int, scratch: Path, hub: DatasetHub) -> list[str]:
    """Change an object, and read it by all commands. Returns what none of them may do."""
    file_format = FORMATS[number % len(FORMATS)]
    original = published_folder(file_format)
    folder = shutil.copytree(original, scratch / "user", symlinks=True)
    what = f"change {number}, {file_format}, {change(folder, chance(number))}"
    before = {name: jobs.files(folder / name) for name in ("outside", "out/run/images")}
    hub.clear()
    wrong = []
    for name, command in commands(folder, original, file_format):
        try:
            command()
        except KilnError as error:
            longest = max(map(len, str(error).splitlines()))
            if longest > MAX_LINE_CHARS:
                wrong.append(f"{what}: {name} writes a line of {longest} characters")
        except BaseException as error:  # noqa: BLE001  # pytest.fail would hide what else is wrong
            wrong.append(f"{what}: {name} raises {type(error).__name__} {str(error)[:200]}")
    if any(SECRET in content for content in (*hub.objects.values(), *hub.files.values())):
        wrong.append(f"{what}: a file of the user's was published")
    for name, content in before.items():
        if jobs.files(folder / name) != content:
            wrong.append(f"{what}: {name} was changed")
    return wrong


def change(folder: Path, dice: random.Random) -> str:
    """Change one object of the export, of the rewritten prompts, or of the forgotten ids."""
    edit, pattern = dice.choice(
        [
            (hostile.change_json, "*.json"),
            (hostile.change_table, "*.parquet"),
            (hostile.replace_object, "*"),
        ]
    )
    roots = [folder / name for name in CHANGED]
    objects = [path for root in roots for path in root.rglob(pattern) if path.is_file()]
    path = dice.choice(sorted(objects))
    what = edit(path, dice)
    _fit_hash(path)
    return f"{path.relative_to(folder)}: {what}"


def _fit_hash(path: Path) -> None:
    """Let the plan of the export have its own hash, and that of rows that were changed."""
    plan = path.parent.parent / "export.json"
    if not path.is_file() or path.is_symlink() or path.stat().st_size > 10**9:
        return
    if path.name == plan.name:
        with suppress(ValueError, RecursionError):
            _seal(path, json.loads(path.read_bytes()))
    if path.parent.name != "_plan":
        return
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    document = json.loads(plan.read_bytes())
    document["files"][int(path.name.partition("-")[0])]["sha256"] = digest
    _seal(plan, document)
    path.rename(path.with_name(f"{path.name.partition('-')[0]}-{digest[:16]}.parquet"))


def _seal(path: Path, document: object) -> None:
    """Write a plan of an export with the digest of its bytes."""
    if isinstance(document, dict):
        document = {**document, "digest": ""}
        digest = hashlib.sha256(json.dumps(document).encode()).hexdigest()
        document["digest"] = digest
    path.write_text(json.dumps(document), encoding="utf-8")


def commands(folder: Path, original: Path, file_format: str) -> Iterator[tuple[str, Command]]:
    """What reads these objects, and what it is called. Those that write come last."""
    run = str(folder / "out" / "run")
    target = str(folder / "export")
    job = rewritten_job(original, "rewritten").model_copy(update={"output": str(folder / "out")})
    yield "estimate", lambda: estimate(job)
    yield "plan", lambda: make_plan(job)
    yield "verify", lambda: verify(run)
    yield "count", lambda: forget(run, ForgetSelection(ids=(PROMPTS[1],)), [target])
    yield "export", lambda: export(run, target, settings(file_format))
    yield "push", lambda: push(target, DATASET, "v1")
    yield "forget", lambda: _forget_exported(run, target)
    yield "push again", lambda: push(target, DATASET, "v2")
    yield "export the rest", lambda: _export_rest(folder, run, file_format)
    yield "push the rest", lambda: push(target, DATASET, "v3")


def _forget_exported(run: str, target: str) -> None:
    """Forget in the export alone: the run's images are compared at the end."""
    opened = open_run(run)
    ids = read_shard_rows(opened.store, opened.plan, 0)["image_id"].combine_chunks()
    remove_from_export(open_store(target), ids.slice(1, 1), remove=True)


def _export_rest(folder: Path, run: str, file_format: str) -> None:
    """Complete an export from which a file and the marker are gone."""
    target = folder / "export"
    shutil.rmtree(target / "forgotten", ignore_errors=True)
    data = [path for path in target.glob("data/*/*") if not path.parent.is_symlink()]
    for path in [*sorted(data)[-1:], target / "_SUCCESS", target / "README.md"]:
        if path.is_file() or path.is_symlink():
            path.unlink()
    export(run, str(target), settings(file_format))


@contextmanager
def serving_hub() -> Iterator[DatasetHub]:
    """A hub that this process pushes to."""
    with dataset_hub() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", TOKEN)
        yield hub


def try_changes(numbers: range) -> list[str]:
    """What the commands do wrong with each of these changes."""
    wrong = []
    with serving_hub() as hub:
        for number in numbers:
            with tempfile.TemporaryDirectory(prefix="imagekiln-hostile-") as folder:
                wrong += try_commands(number, Path(folder), hub)
    return wrong


if __name__ == "__main__":
    hunt(try_changes)
