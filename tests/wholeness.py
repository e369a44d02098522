"""What must hold of a run that claims to be finished, and what its images are."""

from collections.abc import Mapping, Sequence
from functools import cache

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.runs.keys import IMAGES_FOLDER
from imagekiln.steps.runs.manifest import read_forgotten
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import read_image_bytes
from imagekiln.steps.runs.run import open_run, read_shard_manifest
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runs.tables import read_column
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import models
from tests.faults import manifests
from tests.nights import Outcome, Setting, finish_night


def outcomes(store: Store, _: Plan) -> dict[str, Outcome]:
    """What each image of a run is by its manifest."""
    return {
        row["image_id"]: (row["status"], row["sha256"], row["pixels_sha256"])
        for row in manifests(store.uri)
    }


def check_whole(store: Store) -> None:
    """Fail unless a run that claims to be finished has every planned image, as it says."""
    run = open_run(store.uri)
    plan = run.plan
    summary = load_summary(store)
    forgotten = set(read_forgotten(store, run.head.commit).to_pylist())
    ok_ids: list[str] = []
    for number in range(len(plan.shards)):
        manifest = read_shard_manifest(run, number)
        planned = read_shard_rows(store, plan, number)
        assert manifest["image_id"].equals(planned["image_id"])
        for row in manifest.to_pylist():
            may_be_gone = row["image_id"] in forgotten
            assert row["status"] in ("ok", "outscored", "failed", "blank") or may_be_gone, row
            if row["status"] == "ok":
                read_image_bytes(store, row)
                ok_ids.append(row["image_id"])
        if plan.job.keep is not None:
            check_winners(manifest.to_pylist(), plan.job.keep.of)
    assert (summary.images, summary.ok) == (plan.counts.images, len(ok_ids))
    assert summary.not_ok <= summary.failed_share * summary.images


def check_globbed(store: Store) -> None:
    """Fail unless a reader of `images/*.parquet` who knows no commits gets each image once."""
    found = [
        image_id
        for entry in store.list_folder(IMAGES_FOLDER)
        if entry.key.endswith(".parquet")
        for image_id in read_column(store, entry.key, "image_id").to_pylist()
    ]
    run = open_run(store.uri)
    ok = [row["image_id"] for row in manifests(store.uri) if row["status"] == "ok"]
    assert sorted(found) == sorted(ok) or run.plan.job.keep is not None


def check_winners(rows: Sequence[Mapping[str, object]], candidates: int) -> None:
    """Fail unless each group of candidates has one winner, or a failure that a retry may mend."""
    for start in range(0, len(rows), candidates):
        group = rows[start : start + candidates]
        winners = [row for row in group if row["status"] == "ok" and row["candidate_rank"] == 1]
        statuses = {row["status"] for row in group}
        assert len(winners) <= 1, group
        assert winners or statuses & {"forgotten", "failed", "blank"}, group


def undisturbed(setting: Setting) -> tuple[Mapping[str, Outcome], ...]:
    """What the images of each night are where nothing is in the way, by a table of its own.

    Where images compete, what all of them would be.
    """
    return _undisturbed(Setting(setting.nights, passes=setting.passes, images=setting.images))


@cache
def _undisturbed(setting: Setting) -> tuple[Mapping[str, Outcome], ...]:
    folder = models.scratch("undisturbed")
    results = []
    for night in range(setting.nights):
        job = setting.job(folder, night)
        plan = finish_night(job)
        results.append(outcomes(open_store(f"{job.output}/{plan.run_id}"), plan))
    return tuple(results)
