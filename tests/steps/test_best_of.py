"""The best of several candidates: planned together, decided once, whatever happens on the way."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import imagekiln
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.runs import open_source
from imagekiln.steps.errors import BadInput
from imagekiln.steps.gallery.index import index_columns
from imagekiln.steps.generate.step import LazyDenoiser, generate_shard
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.local import run
from imagekiln.steps.maintain.retry import announce_retry
from imagekiln.steps.maintain.run_list import list_runs
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.run import open_run, read_shard_manifest
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.text import format_forgotten
from tests.kills import finish_run, make_undisturbed, make_with_kills, plan_run
from tests.runs import (
    PROMPTS,
    begin_retry,
    encoded,
    fill,
    job,
    not_ok,
    planned,
    write_prompts,
)
from tests.runs import settings as small_settings
from tests.scorers import clip_folder

SEEDS = {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}}
BEST: dict[str, object] = {"scores": SEEDS, "keep": "best 1 of 4 by seeds"}
PROMPT_COUNT = 5


def plan_best(scratch: Path, **changes: object) -> PlanResult:
    """A run of five prompts with four candidates each."""
    rows = PROMPTS[:PROMPT_COUNT]
    return planned(scratch, str(scratch / "out"), rows, **{**BEST, **changes})


def manifest_of(uri: str, shards: int) -> pa.Table:
    """The manifest of all shards."""
    run = open_run(uri)
    return pa.concat_tables([read_shard_manifest(run, number) for number in range(shards)])


def make(uri: str, plan: PlanResult, *, parts: slice = slice(None)) -> None:
    """Generate every shard, or some of its parts."""
    store = open_store(uri)
    denoiser = LazyDenoiser(store, plan.plan)
    for number in range(len(plan.plan.shards)):
        generate_shard(
            store,
            plan.plan,
            number,
            denoiser,
            NoProgress(),
            Stop(),
            record=lambda _: None,
            parts=parts,
        )
    denoiser.close()


def winners(manifest: pa.Table) -> dict[str, int]:
    """The image_index of the one image that each prompt has, by the prompt's id."""
    ok = [row for row in manifest.to_pylist() if row["status"] == "ok"]
    assert len(ok) == len({row["id"] for row in ok})
    return {row["id"]: row["image_index"] for row in ok}


def winning_scores(manifest: pa.Table) -> list[float]:
    """The score of each image that is stored."""
    return [row["seeds"] for row in manifest.to_pylist() if row["status"] == "ok"]


def test_candidates_are_planned_together_however_a_run_is_cut(tmp_path: Path) -> None:
    sizes = ((3, 5, 7), (1, 1, 1))
    for number, (batch, part, shard) in enumerate(sizes):
        plan = plan_best(
            tmp_path / str(number),
            batch={"images": batch},
            part={"images": part},
            shard={"images": shard},
        )
        store = open_store(plan.uri)
        for shard_number in range(len(plan.plan.shards)):
            for planned_part in read_shard(store, plan.plan, shard_number):
                names = Counter(planned_part.rows["id"].to_pylist())
                assert set(names.values()) == {4}
                assert planned_part.rows["image_index"].to_pylist() == [*range(4)] * len(names)


def test_each_prompt_keeps_the_candidate_with_the_highest_score(tmp_path: Path) -> None:
    plan = plan_best(tmp_path)
    make(plan.uri, plan)
    summary = aggregate(plan.uri)
    assert (summary.images, summary.ok, summary.outscored, summary.not_ok) == (20, 5, 15, 0)
    manifest = manifest_of(plan.uri, len(plan.plan.shards))
    assert len(winners(manifest)) == PROMPT_COUNT
    for prompt in PROMPTS[:PROMPT_COUNT]:
        rows = [row for row in manifest.to_pylist() if row["id"] == prompt["id"]]
        rows.sort(key=lambda row: -row["seeds"])
        assert [row["candidate_rank"] for row in rows] == [1, 2, 3, 4]
        assert [row["status"] for row in rows] == ["ok"] + ["outscored"] * 3
        assert [row["seeds"] for row in rows] == [row["seed"] % 1009 for row in rows]
        assert [row["sha256"] is None for row in rows] == [False, True, True, True]
    verified = verify(plan.uri)
    assert (verified.ok, verified.statuses) == (5, {"ok": 5, "outscored": 15})
    assert pq.read_table(Path(plan.uri, "images"))["candidate_rank"].to_pylist() == [1] * 5
    (overview,) = list_runs(str(tmp_path / "out"))
    assert (overview.not_ok, overview.statuses) == (0, {"ok": 5, "outscored": 15})
    scores = summary.distributions.scores["seeds"]
    assert sum(each.images for each in scores.bins) == 5
    assert scores.least == min(winning_scores(manifest))
    counted = imagekiln.forget(plan.uri, ids=[str(PROMPTS[0]["id"])])
    assert format_forgotten(counted).startswith(f"{plan.uri}: 4 planned images selected")


def test_the_seeds_and_ids_of_candidates_are_those_of_so_many_images(tmp_path: Path) -> None:
    plan = plan_best(tmp_path / "best")
    plain = planned(
        tmp_path / "plain",
        str(tmp_path / "plain" / "out"),
        PROMPTS[:PROMPT_COUNT],
        defaults={"steps": 2, "guidance": 3.0, "seed": 7, "images_per_prompt": 4},
    )
    columns = ["image_id", "seed", "image_index", "id"]
    tables = [
        read_shard_rows(open_store(result.uri), result.plan, 0).select(columns)
        for result in (plan, plain)
    ]
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_killed_processes_leave_one_winner_for_each_prompt(tmp_path: Path) -> None:
    by_clip = {
        "scores": {"clip_score": {"kind": "clip_score", "id": str(clip_folder())}},
        "keep": "best 1 of 4 by clip_score",
    }
    calm, killed = (
        plan_run(tmp_path / name, str(tmp_path / name / "out"), PROMPT_COUNT * 3, **by_clip)
        for name in ("calm", "killed")
    )
    undisturbed = make_undisturbed(calm)
    assert make_with_kills(killed, 4, seed=7).between >= 4
    dataset = finish_run(killed)
    assert dataset.parts == undisturbed.parts
    assert dataset.manifest.equals(undisturbed.manifest, check_metadata=True)
    statuses = Counter(dataset.manifest["status"].to_pylist())
    assert statuses == {"ok": PROMPT_COUNT * 3, "outscored": PROMPT_COUNT * 9}


def test_retry_makes_all_candidates_of_prompts_without_a_winner(tmp_path: Path) -> None:
    plan = plan_best(tmp_path, limits={"failed_share": 1})
    outcomes = {place: not_ok(place % 4) for place in range(4)}
    outcomes[1] = not_ok(1, "filtered", "refused")
    fill(plan, outcomes)
    aggregate(plan.uri)
    rows = read_shard_rows(open_store(plan.uri), begin_retry(plan), 0)
    assert rows["id"].to_pylist() == ["row-0"] * 4
    assert rows["image_index"].to_pylist() == [*range(4)]


FIRST, SECOND = (replace(encoded(0), candidate_rank=rank) for rank in (1, 2))


def test_a_prompt_that_has_its_image_is_skipped_the_next_night(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    first = job(write_prompts(tmp_path / "a.parquet", PROMPTS[:2]), output, **BEST)
    run(first, NoProgress(), Stop())
    second = job(
        write_prompts(tmp_path / "b.parquet", PROMPTS[:3]), output, skip_existing=True, **BEST
    )
    counts = make_plan(second).plan.counts
    assert (counts.images, counts.existing_images) == (4, 8)


@pytest.mark.slow
def test_a_canary_has_whole_groups(tmp_path: Path) -> None:
    settings = job(write_prompts(tmp_path / "p.parquet", PROMPTS), str(tmp_path / "out"), **BEST)
    plan = make_plan(settings, sample_images=6)
    assert plan.plan.sample_images == 8
    rows = read_shard_rows(open_store(plan.uri), plan.plan, 0)
    assert rows["image_index"].to_pylist() == [*range(4)] * 2


@pytest.mark.slow
def test_forgotten_candidates_change_no_winner(tmp_path: Path) -> None:
    rows = PROMPTS[:2]
    output = str(tmp_path / "out")
    plan = planned(tmp_path, output, rows, **BEST)
    make(plan.uri, plan)
    aggregate(plan.uri)
    before = {row["image_id"]: row for row in manifest_of(plan.uri, 1).to_pylist()}
    ranked = {(row["id"], row["candidate_rank"]): row["image_id"] for row in before.values()}
    down = [ranked["row-0", 1], ranked["row-1", 3]]  # a winner, and one that has lost
    imagekiln.forget(plan.uri, ids=down, remove=True)

    def require_same_others() -> None:
        assert verify(plan.uri).images == 8
        for row in manifest_of(plan.uri, 1).to_pylist():
            if row["image_id"] in down:
                outcome = (row["status"], row["seeds"], row["candidate_rank"], row["sha256"])
                assert outcome == ("forgotten", None, None, None)
            else:
                moved = {name: row[name] for name in ("part", "byte_offset")}
                assert row == before[row["image_id"]] | moved

    require_same_others()
    summary = aggregate(plan.uri)
    assert (summary.ok, summary.outscored, summary.forgotten, summary.not_ok) == (1, 5, 2, 0)
    store = open_store(plan.uri)
    assert announce_retry(open_run(plan.uri))[1] is None

    buried = read_shard(store, plan.plan, 0)[0]
    empty = store.read(buried.key)
    make(plan.uri, plan)  # nothing is missing
    assert store.read(buried.key) == empty
    aggregate(plan.uri)
    require_same_others()

    again = job(write_prompts(tmp_path / "b.parquet", rows), output, skip_existing=True, **BEST)
    assert make_plan(again).plan.counts.images == 0
    imagekiln.export(plan.uri, tmp_path / "export")
    (image,) = pq.read_table(tmp_path / "export" / "data").to_pylist()
    assert (image["image_id"], image["candidate_rank"]) == (ranked["row-1", 1], 1)
    filters = index_columns(open_source(plan.uri).columns)
    assert [filters[name].kind for name in ("seeds", "candidate_rank")] == ["number", "whole"]


def test_rows_that_share_some_candidates_are_refused_with_their_place(tmp_path: Path) -> None:
    table = tmp_path / "near.csv"
    table.write_text("prompt,Seed\na cat,1\na dog,1\na cat,2\na cat,3\na cat,9\n")
    plain = small_settings(tmp_path / "none", str(tmp_path / "out"), **BEST)
    with pytest.raises(BadInput) as caught:
        make_plan(validate_job(plain | {"prompts": str(table)}))
    assert str(caught.value) == (
        f"{table}: Seed is so near that of the same prompt that they share some candidates "
        "(2 rows; the first is row 2 on line 4, value '2'). "
        "Rows are counted from 0, without a header. Leave the seed empty and give each row an id, "
        "or set seeds at least 4 apart."
    )
