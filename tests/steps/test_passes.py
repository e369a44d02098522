"""Runs whose images have passes: what is stored, counted, resumed, retried and drawn again."""

from pathlib import Path

import pytest

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.runs import open_source
from imagekiln.steps.errors import BadInput
from imagekiln.steps.gallery.index import index_columns
from imagekiln.steps.generate.step import LazyDenoiser, generate_shard
from imagekiln.steps.job.job import Job
from imagekiln.steps.local import run
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan import rules
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.plan import plan_to_json
from imagekiln.steps.runs.readback import read_image_bytes, read_image_pixels
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.image_models import captioner_folder, upscaler_folder
from tests.kills import finish_run, make_undisturbed, make_with_kills, plan_run
from tests.models import DIFFUSERS_WARNS, SIDE, folder
from tests.notes import parse, read
from tests.runs import (
    PROMPTS,
    begin_retry,
    fill,
    job,
    manifest_of,
    not_ok,
    planned,
    stats_of,
    write_prompts,
)

BIG: dict[str, object] = {"kind": "upscale", "id": str(upscaler_folder())}
DETAIL: dict[str, object] = {"kind": "refine", "strength": 0.5, "scale": 1.5}
WORDS: dict[str, object] = {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8}
OTHER: dict[str, object] = {"id": str(folder("sdxl")), "dtype": "float32"}
ALL = {"big": BIG, "detail": DETAIL, "words": WORDS}
SEEDS = {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}}
ROWS = PROMPTS[:6]


def make(result: PlanResult, parts: slice = slice(None)) -> None:
    """Generate every shard, or some of its parts."""
    store = open_store(result.uri)
    denoiser = LazyDenoiser(store, result.plan)
    for number in range(len(result.plan.shards)):
        generate_shard(store, result.plan, number, denoiser, NoProgress(), Stop(), parts=parts)
    denoiser.close()


def job_with(scratch: Path, **changes: object) -> Job:
    """A job of six prompts in one shard, with all passes unless others are named."""
    prompts = write_prompts(scratch / "prompts.parquet", ROWS)
    return job(prompts, str(scratch / "out"), **{"passes": ALL, **changes})


def test_what_is_stored_is_what_passes_made(tmp_path: Path) -> None:
    result = run(job_with(tmp_path), NoProgress(), Stop())
    assert result.summary.ok == len(ROWS)
    (shape,) = result.summary.distributions.shapes.top
    assert (shape.value.split()[0], shape.images) == (f"{3 * SIDE}", len(ROWS))
    assert verify(result.uri).images == len(ROWS)
    store = open_store(result.uri)
    rows = manifest_of(result.uri).to_pylist()
    for row in rows:
        assert (row["width"], row["height"]) == (3 * SIDE, 3 * SIDE)
        assert (row["drawn_width"], row["drawn_height"]) == (SIDE, SIDE)
        assert read_image_pixels(store, row).shape == (3 * SIDE, 3 * SIDE, 3)
        notes = parse(read(read_image_bytes(store, row)).parameters or "").settings
        assert (notes["Size"], notes["Hires upscale"]) == (f"{SIDE}x{SIDE}", "3")
        assert notes["Final size"] == f"{3 * SIDE}x{3 * SIDE}"
        assert notes["Hires upscaler"] == Path(str(BIG["id"])).name
        assert row["words"]
    assert len({row["words"] for row in rows}) > 1
    stats = stats_of(store.uri, 0)
    assert stats is not None
    assert [*stats.seconds.passes] == [*ALL]
    assert (Path(result.uri) / "report" / "index.html").read_text().count("pass detail") >= 1
    assert index_columns(open_source(result.uri).columns)["words"].kind == "text"
    again = reproduce(result.uri, rows[4]["image_id"], tmp_path / "again.png")
    assert again.equal in ("bytes", "pixels")
    imagekiln.export(result.uri, tmp_path / "export")


def test_the_drawn_image_has_the_seed_of_a_job_without_passes(tmp_path: Path) -> None:
    with_passes, without, captioned = (
        planned(tmp_path / name, str(tmp_path / name / "out"), ROWS, passes=passes)
        for name, passes in (("with", ALL), ("without", {}), ("captioned", {"words": WORDS}))
    )
    tables = [
        read_shard_rows(open_store(result.uri), result.plan, 0)
        for result in (with_passes, without, captioned)
    ]
    assert tables[0]["seed"] == tables[1]["seed"] == tables[2]["seed"]
    ids = [set(table["image_id"].to_pylist()) for table in tables]
    assert len(set.union(*ids)) == 3 * len(ROWS)
    assert tables[1].column_names == tables[2].column_names
    assert tables[0].column_names == [*tables[1].column_names, "drawn_width", "drawn_height"]
    assert "passes" not in plan_to_json(without.plan).decode()


@pytest.mark.slow
def test_a_run_that_is_made_in_pieces_is_the_same(tmp_path: Path) -> None:
    whole = make_plan(job_with(tmp_path / "whole"))
    make(whole)
    aggregate(whole.uri)
    pieces = make_plan(job_with(tmp_path / "pieces", part={"images": 4}))
    make(pieces, slice(1, 2))  # as if a process had ended between parts
    make(pieces)
    aggregate(pieces.uri)
    columns = ["image_id", "pixels_sha256", "words", "status"]
    assert manifest_of(whole.uri).select(columns) == manifest_of(pieces.uri).select(columns)


@pytest.mark.slow
@pytest.mark.filterwarnings(DIFFUSERS_WARNS)
def test_a_second_pass_by_another_model_is_stored_resumed_and_drawn_again(tmp_path: Path) -> None:
    passes = {"detail": {**DETAIL, "model": OTHER}}
    whole = make_plan(job_with(tmp_path / "whole", passes=passes))
    make(whole)
    aggregate(whole.uri)
    pieces = make_plan(job_with(tmp_path / "pieces", passes=passes, part={"images": 4}))
    make(pieces, slice(1, 2))  # as if a process had ended between parts
    make(pieces)
    aggregate(pieces.uri)
    columns = ["image_id", "pixels_sha256", "status", "width", "drawn_width"]
    manifest = manifest_of(whole.uri)
    assert manifest.select(columns) == manifest_of(pieces.uri).select(columns)
    assert set(manifest["status"].to_pylist()) == {"ok"}
    assert set(manifest["width"].to_pylist()) == {SIDE * 3 // 2}
    again = reproduce(whole.uri, manifest["image_id"][4].as_py(), tmp_path / "again.png")
    assert again.equal in ("bytes", "pixels")


@pytest.mark.slow
def test_killed_processes_leave_the_same_images(tmp_path: Path) -> None:
    passes = {**ALL, "detail": {**DETAIL, "steps": 2}}
    calm, killed = (
        plan_run(tmp_path / name, str(tmp_path / name / "out"), 12, passes=passes)
        for name in ("calm", "killed")
    )
    undisturbed = make_undisturbed(calm)
    assert make_with_kills(killed, 2, seed=7).between >= 2
    dataset = finish_run(killed)
    assert dataset.parts == undisturbed.parts
    assert dataset.manifest.equals(undisturbed.manifest, check_metadata=True)


def test_only_winners_have_passes(tmp_path: Path) -> None:
    passes = {"big": BIG, "words": WORDS}
    best = {"scores": SEEDS, "keep": "best 1 of 4 by seeds", "passes": passes}
    result = run(job_with(tmp_path, **best), NoProgress(), Stop())
    assert (result.summary.ok, result.summary.outscored) == (len(ROWS), 3 * len(ROWS))
    for row in manifest_of(result.uri).to_pylist():
        is_winner = row["candidate_rank"] == 1
        assert row["status"] == ("ok" if is_winner else "outscored")
        assert (row["words"] is not None) == is_winner
        assert row["seeds"] == row["seed"] % 1009
        assert (row["width"], row["drawn_width"]) == (2 * SIDE, SIDE)


def test_an_image_whose_pass_failed_is_retried(tmp_path: Path) -> None:
    plan = planned(
        tmp_path, str(tmp_path / "out"), ROWS, passes={"big": BIG}, limits={"failed_share": 1}
    )
    fill(plan, {2: not_ok(2, error="RuntimeError: no room (in passes.big)")})
    aggregate(plan.uri)
    rows = read_shard_rows(open_store(plan.uri), begin_retry(plan), 0)
    assert rows["id"].to_pylist() == ["row-2"]
    assert rows["drawn_width"].to_pylist() == [SIDE]


def test_estimates_count_what_is_stored_and_the_steps_of_second_passes(tmp_path: Path) -> None:
    figure = {"shard": {"images": 8, "seconds_per_image": 10.0}}
    plain, enlarged, refined = (
        estimate(job_with(tmp_path, passes=passes, **figure))
        for passes in ({}, {"big": BIG}, {"big": BIG, "detail": DETAIL})
    )
    assert (plain.stored_size, refined.stored_size) == (None, (3 * SIDE, 3 * SIDE))
    assert enlarged.gigabytes == pytest.approx(4 * plain.gigabytes)
    assert refined.gigabytes == pytest.approx(9 * plain.gigabytes)
    assert plain.gpu_hours is not None
    assert refined.gpu_hours is not None
    assert enlarged.gpu_hours == plain.gpu_hours
    assert refined.gpu_hours == pytest.approx((1 + 9 * 0.5) * plain.gpu_hours)


def test_rows_that_passes_make_too_large_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": "a", "width": side} for side in (16, 64)]
    monkeypatch.setattr(rules, "MAX_IMAGE_PIXELS", 64 * 32)
    limits = {"rejected_share": 0.6}
    plan = planned(tmp_path, str(tmp_path / "out"), rows, passes={"big": BIG}, limits=limits)
    (rejected,) = jobs.rejected(plan)
    assert rejected["reason"] == "times height is over 2048 pixels after the passes"
    few = [{"prompt": "a", "steps": steps} for steps in (1, 2)]
    other = planned(
        tmp_path / "few", str(tmp_path / "few"), few, passes={"x": DETAIL}, limits=limits
    )
    (rejected,) = jobs.rejected(other)
    assert rejected["column_name"] == "steps"


def test_a_run_is_not_resumed_with_other_passes(tmp_path: Path) -> None:
    make_plan(job_with(tmp_path, run_id="night"))
    assert make_plan(job_with(tmp_path, run_id="night")).adopted
    swapped = {"detail": DETAIL, "big": BIG, "words": WORDS}
    for passes in ({}, {"big": BIG}, swapped):
        with pytest.raises(BadInput, match="holds a plan with another `passes`"):
            make_plan(job_with(tmp_path, run_id="night", passes=passes))
