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
from imagekiln.steps.runs.parts_to_make import has_parts_to_make
from imagekiln.steps.runs.rewriting import Rewriting
from imagekiln.steps.runs.rounds import iter_rounds, open_run
from imagekiln.steps.runs.stats import load_stats
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.saved import (
    BEST,
    CANDIDATES,
    CARRIED,
    FIELDS,
    PLAIN,
    PROMPTS,
    SAVED_RUNS,
    job_of,
    list_fields,
    making_saved_runs,
    unpack,
    work,
)

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
    "export": lambda uri: export(uri, f"{uri}-export"),
    "forget": lambda uri: forget(uri, ForgetSelection(prompt_parts=("a",)), remove=True),
}
READERS_OF_MANIFESTS = ("verify", "reproduce", "diff", "dataset")


@pytest.fixture(params=SAVED_RUNS, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def archive(request: pytest.FixtureRequest) -> Path:
    """The runs that a release has left."""
    path: Path = request.param
    return path


@pytest.fixture
def saved_run(archive: Path, tmp_path: Path) -> str:
    """The URI of a plain run that a release has left."""
    return unpack(archive, tmp_path, PLAIN)


@pytest.fixture(params=[PLAIN, BEST])
def any_run(request: pytest.FixtureRequest, archive: Path, tmp_path: Path) -> str:
    """The URI of one of the runs that a release has left."""
    return unpack(archive, tmp_path, request.param)


def planned_images(uri: str) -> int:
    """How many images a saved run has: PROMPTS, with all candidates."""
    return len(PROMPTS) * CANDIDATES[Path(uri).name]


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


def test_saved_run_of_each_release_verifies_as_it_is(any_run: str) -> None:
    before = jobs.files(Path(any_run))
    result = verify(any_run)
    assert (result.images, result.ok) == (planned_images(any_run), len(PROMPTS) - 1)
    assert jobs.files(Path(any_run)) == before


def test_saved_run_is_read_as_a_dataset(any_run: str) -> None:
    batches = imagekiln.dataset(any_run).to_batches()
    rows = [row for batch in batches for row in batch.to_pylist()]
    prompts = [row.get("prompt_original", row["prompt"]) for row in rows]
    assert prompts == [text for text in PROMPTS if "always" not in text]
    assert all(row["image"]["bytes"].startswith(b"\x89PNG") for row in rows)


def test_saved_scores_captions_and_carried_columns_are_read(archive: Path, tmp_path: Path) -> None:
    uri = unpack(archive, tmp_path, BEST)
    for row in pa.Table.from_batches(imagekiln.dataset(uri).to_batches()).to_pylist():
        assert (row["seeds"], row["candidate_rank"]) == (row["seed"] % 1009, 1)
        assert row["words"] == row["image_id"][:4]
        assert row["prompt"].startswith(row["prompt_original"])
        carried = [column[row["input_row"]].as_py() for column in CARRIED.values()]
        assert repr([row[name] for name in CARRIED]) == repr(carried)  # one is not a number


def test_saved_runs_are_one_dataset(archive: Path, tmp_path: Path) -> None:
    output = str(Path(unpack(archive, tmp_path, PLAIN)).parent)
    images = len(CANDIDATES) * (len(PROMPTS) - 1)
    assert imagekiln.dataset(output).count_rows() == images
    assert export(output, str(tmp_path / "export")).images == images


def test_saved_run_is_retried_and_aggregated(any_run: str) -> None:
    run = open_run(any_run)
    retry_round = plan_next_round(run.store, run.plan)
    assert retry_round is not None
    left = CANDIDATES[run.plan.run_id]
    assert (retry_round.plan.round, retry_round.plan.counts.images) == (3, left)
    summary = aggregate(any_run)
    assert (summary.ok, summary.outscored) == (len(PROMPTS) - 1, (left - 1) * (len(PROMPTS) - 1))
    assert (summary.images, summary.rounds) == (planned_images(any_run), 3)


def test_saved_round_that_was_superseded_is_not_resumed(any_run: str) -> None:
    run = open_run(any_run)
    superseded, last = iter_rounds(run.store, run.plan)
    assert (superseded.is_superseded, superseded.is_finished) == (True, False)
    assert (last.is_superseded, last.is_finished) == (False, True)
    assert not has_parts_to_make(superseded.store, superseded.plan, [0])


def test_saved_runs_are_listed_and_left_by_garbage_collection(
    archive: Path, tmp_path: Path
) -> None:
    output = str(Path(unpack(archive, tmp_path, PLAIN)).parent)
    overviews = list_runs(output)
    assert {overview.run_id for overview in overviews} == {*CANDIDATES}
    for overview in overviews:
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


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("diff", manifest_key(0)),
        ("dataset", manifest_key(0)),
        ("aggregate", part_key(0, 1)),
        ("verify", part_key(0, 1)),
    ],
)
def test_status_that_only_a_newer_version_has_is_no_damage(
    name: str, key: str, saved_run: str
) -> None:
    path = Path(saved_run) / key
    table = pq.read_table(path)
    statuses = pa.array(["recalled", *table["status"].to_pylist()[1:]])
    place = table.schema.get_field_index("status")
    metadata = pq.read_metadata(path).metadata
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.set_column(place, table.schema.field(place), statuses))
        writer.add_key_value_metadata(metadata)
    with pytest.raises(NewerVersion, match=r"does not know \(recalled\)\. If a newer one wrote it"):
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
    assert {overview.run_id for overview in list_runs(str(output))} == {*CANDIDATES}
    assert "newer/plan.json: was written by a newer Imagekiln" in caplog.text


def test_saved_run_is_exported_shown_and_compared(any_run: str, tmp_path: Path) -> None:
    assert export(any_run, str(tmp_path / "export")).images == len(PROMPTS) - 1
    with open_gallery(any_run) as gallery:
        state = gallery.wait()
        assert (state.is_complete, state.problems) == (True, ())
        assert len(gallery.page(PageQuery())) == planned_images(any_run)
    assert diff(any_run, any_run, str(tmp_path / "diff")).both == planned_images(any_run)


@pytest.mark.quick_cases(1)
def test_images_of_a_saved_run_are_skipped_and_forgotten(
    any_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the models are
    name = Path(any_run).name
    counts = make_plan(job_of(name, run_id="next", skip_existing=True)).plan.counts
    candidates = CANDIDATES[name]
    assert counts.existing_images == planned_images(any_run) - candidates
    assert counts.images == candidates

    selection = ForgetSelection(prompt_parts=(PROMPTS[0],))
    assert forget(any_run, selection, remove=True).images == candidates
    assert verify(any_run).ok == len(PROMPTS) - 2


def test_saved_run_that_was_interrupted_resumes(any_run: str) -> None:
    folder = Path(any_run)
    for path in (folder / SUCCESS_KEY, *folder.glob("*/00000-0001.*")):
        path.unlink()
    work(any_run)
    assert aggregate(any_run).missing == 0
    assert verify(any_run).images == planned_images(any_run)


def test_fields_of_a_run_s_objects_change_with_their_versions() -> None:
    """Else: raise the version of what older readers would misread, and run tests.saved --fields."""
    with making_saved_runs() as output:
        assert list_fields(output) == json.loads(FIELDS.read_bytes())


def test_rewritten_prompts_of_a_newer_version_are_refused_in_a_sentence(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.create("_rewritten/0/rewrite.json", b'{"schema_version": 99, "unheard_of": 1}')
    with pytest.raises(NewerVersion, match=r"rewrite\.json: was written by a newer Imagekiln"):
        Rewriting(store, "0").read_model()
