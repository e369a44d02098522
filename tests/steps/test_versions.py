"""Runs of other versions: those of earlier releases are read, and those of newer ones refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import NewerVersion
from imagekiln.steps.export.step import export
from imagekiln.steps.gallery.gallery import open_gallery
from imagekiln.steps.gallery.queries import PageQuery
from imagekiln.steps.generate.start import generate
from imagekiln.steps.maintain.diff import diff
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.retry import plan_next_round, retry
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    manifest_key,
    part_key,
    stats_key,
)
from imagekiln.steps.runs.rewriting import Rewriting
from imagekiln.steps.runs.rounds import open_run
from imagekiln.steps.runs.stats import load_stats
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.protocol import work
from tests.saved import FIELDS, PROMPTS, SAVED_RUNS, list_fields, making_saved_run, unpack

Command = Callable[[str], object]
COMMANDS: dict[str, Command] = {
    "generate": lambda uri: generate(uri, 0),
    "aggregate": aggregate,
    "verify": verify,
    "retry": retry,
    "reproduce": lambda uri: reproduce(uri, "row-0"),
    "diff": lambda uri: diff(uri, uri, f"{uri}-diff"),
    "dataset": lambda uri: list(imagekiln.dataset(uri).to_batches()),
    "gc": lambda uri: gc(str(Path(uri).parent)),
}
READERS_OF_MANIFESTS = ("verify", "reproduce", "diff", "dataset")


@pytest.fixture(params=SAVED_RUNS, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def saved_run(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a run that a release has left."""
    return unpack(request.param, tmp_path)


def raise_version(uri: str, key: str) -> None:
    """Let an object of a run say that a newer Imagekiln has written it, in ways of its own."""
    path = Path(uri) / key
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        metadata = {**(table.schema.metadata or {}), b"imagekiln.schema_version": b"99"}
        pq.write_table(table.select([1]).replace_schema_metadata(metadata), path)
    else:
        content = {"schema_version": 99, "run_id": path.parent.name, "unheard_of": 1}
        path.write_text(json.dumps(content))


def test_saved_run_of_each_release_verifies_as_it_is(saved_run: str) -> None:
    before = jobs.files(Path(saved_run))
    result = verify(saved_run)
    assert (result.images, result.ok) == (len(PROMPTS), len(PROMPTS) - 1)
    assert jobs.files(Path(saved_run)) == before


def test_saved_run_is_read_as_a_dataset(saved_run: str) -> None:
    batches = imagekiln.dataset(saved_run).to_batches()
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["prompt"] for row in rows] == [text for text in PROMPTS if "always" not in text]
    assert all(row["image"]["bytes"].startswith(b"\x89PNG") for row in rows)


def test_saved_run_is_retried_and_aggregated(saved_run: str) -> None:
    run = open_run(saved_run)
    retry_round = plan_next_round(run.store, run.plan)
    assert retry_round is not None
    assert (retry_round.plan.round, retry_round.plan.counts.images) == (2, 1)
    summary = aggregate(saved_run)
    assert (summary.ok, summary.images, summary.rounds) == (len(PROMPTS) - 1, len(PROMPTS), 2)


def test_saved_run_is_listed_and_left_by_garbage_collection(saved_run: str) -> None:
    output = str(Path(saved_run).parent)
    (overview,) = list_runs(output)
    assert (overview.state, overview.ok) == ("succeeded", len(PROMPTS) - 1)
    assert gc(output, -1, remove=True).found == ()


@pytest.mark.parametrize("name", COMMANDS)
def test_run_of_a_newer_version_is_refused_in_a_sentence(name: str, saved_run: str) -> None:
    raise_version(saved_run, PLAN_KEY)
    before = jobs.files(Path(saved_run))
    with pytest.raises(NewerVersion, match=r"plan\.json: was written by a newer Imagekiln") as info:
        COMMANDS[name](saved_run)
    assert "Update Imagekiln" in str(info.value)
    assert jobs.files(Path(saved_run)) == before


@pytest.mark.parametrize("name", READERS_OF_MANIFESTS)
def test_manifest_of_a_newer_version_is_refused_in_a_sentence(name: str, saved_run: str) -> None:
    raise_version(saved_run, manifest_key(0))
    with pytest.raises(NewerVersion, match=r"manifest/00000\.parquet: was written by a newer"):
        COMMANDS[name](saved_run)


@pytest.mark.parametrize("name", ["generate", "aggregate", "verify"])
def test_part_of_a_newer_version_is_refused_in_a_sentence(name: str, saved_run: str) -> None:
    raise_version(saved_run, part_key(0, 1))
    with pytest.raises(NewerVersion, match=r"00000-0001\.parquet: was written by a newer"):
        COMMANDS[name](saved_run)


def test_summary_of_a_newer_version_is_not_written_over(saved_run: str) -> None:
    raise_version(saved_run, SUMMARY_KEY)
    before = open_store(saved_run).read(SUMMARY_KEY)
    for command in (aggregate, verify):
        with pytest.raises(NewerVersion, match=r"summary\.json: was written by a newer Imagekiln"):
            command(saved_run)
    assert open_store(saved_run).read(SUMMARY_KEY) == before


def test_statistics_of_a_newer_version_do_not_count(saved_run: str) -> None:
    assert load_stats(open_store(saved_run), 0) is not None
    raise_version(saved_run, stats_key(0))
    assert load_stats(open_store(saved_run), 0) is None
    assert aggregate(saved_run).ok == len(PROMPTS) - 1


def test_newer_run_among_others_is_named_and_they_are_listed(
    saved_run: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = Path(saved_run).parent
    newer = jobs.plan(output.parent, {"prompt": ["a"]}, run_id="newer")
    raise_version(newer.uri, PLAN_KEY)
    assert [overview.run_id for overview in list_runs(str(output))] == ["saved"]
    assert "newer/plan.json: was written by a newer Imagekiln" in caplog.text


def test_saved_run_is_exported_shown_and_compared(saved_run: str, tmp_path: Path) -> None:
    assert export(saved_run, str(tmp_path / "export")).images == len(PROMPTS) - 1
    with open_gallery(saved_run) as gallery:
        state = gallery.wait()
        assert (state.is_complete, state.problems) == (True, ())
        assert len(gallery.page(PageQuery())) == len(PROMPTS)
    assert diff(saved_run, saved_run, str(tmp_path / "diff")).both == len(PROMPTS)


def test_images_of_a_saved_run_are_skipped_and_forgotten(saved_run: str) -> None:
    output = Path(saved_run).parent
    plan = open_run(saved_run).plan
    changes = {"run_id": "next", "skip_existing": True, "output": str(output)}
    job = plan.job.model_copy(update=changes)
    prompts = output.parent / "prompts.parquet"
    pq.write_table(pa.table({"prompt": PROMPTS}), prompts)
    job = job.model_copy(update={"prompts": str(prompts)})
    counts = make_plan(job).plan.counts
    assert (counts.existing_images, counts.images) == (len(PROMPTS) - 1, 1)

    selection = ForgetSelection(prompt_parts=(PROMPTS[0],))
    assert forget(saved_run, selection, remove=True).images == 1
    assert verify(saved_run).ok == len(PROMPTS) - 2


def test_saved_run_that_was_interrupted_resumes(saved_run: str) -> None:
    folder = Path(saved_run)
    for key in (SUCCESS_KEY, part_key(0, 1)):
        (folder / key).unlink()
    work(saved_run, 0)
    assert aggregate(saved_run).missing == 0


def test_fields_of_a_run_s_objects_change_with_their_versions() -> None:
    """Else: raise the version of what older readers would misread, and run tests.saved --fields."""
    with making_saved_run() as output:
        assert list_fields(output) == json.loads(FIELDS.read_bytes())


def test_rewritten_prompts_of_a_newer_version_are_refused_in_a_sentence(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.create("_rewritten/0/rewrite.json", b'{"schema_version": 99, "unheard_of": 1}')
    with pytest.raises(NewerVersion, match=r"rewrite\.json: was written by a newer Imagekiln"):
        Rewriting(store, "0").read_model()
