"""Gates in whole runs: what they mark, and what fails the run."""

from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.generate import encoder
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.keys import REPORT_KEY, SUCCESS_KEY, commit_key, part_key
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import manifest_names
from tests.runs import PROMPTS, fill, job, not_ok, planned, write_prompts

ROWS = [dict(row) | {"seed": place} for place, row in enumerate(PROMPTS[:8])]
EVEN = {"name": "even", "entry": "tests.own_checks:even"}


def manifest(store: Store) -> pa.Table:
    """The whole manifest of a run."""
    return pa.concat_tables([read_table(store, name) for name in manifest_names(store.uri)])


def _run(tmp_path: Path, **gates: object) -> Store:
    prompts = write_prompts(tmp_path / "prompts.parquet", ROWS)
    return open_store(
        run(job(prompts, str(tmp_path / "out"), gates=gates), NoProgress(), Stop()).uri
    )


def test_each_gate_marks_the_images_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "MAX_SATURATION", 0)
    store = _run(tmp_path, low_contrast={"below": 0.5}, checks=[EVEN])
    table = manifest(store)
    assert table["status"].to_pylist() == ["ok"] * 8
    for row in table.to_pylist():
        expected = (
            ["low_contrast"]
            + ["over_saturated"] * (row["saturation"] > 0)
            + ["even"] * (row["seed"] % 2)
        )
        assert row["marks"] == expected
        assert row["marks_reason"] == (
            f"even: seed {row['seed']} is odd" if row["seed"] % 2 else None
        )
        assert 0 < row["contrast"] < 0.5
        assert isinstance(row["phash"], int)
    assert verify(store.uri).ok == 8


def test_a_resumed_run_comes_to_the_same_verdicts(tmp_path: Path) -> None:
    store = _run(tmp_path, low_contrast={"below": 0.2}, checks=[EVEN], near_duplicate={})
    (named,) = manifest_names(store.uri)
    before = {key: store.read(key) for key in (part_key(0, 0), part_key(0, 1), named)}
    for key in (part_key(0, 1), named, commit_key(0), SUCCESS_KEY):
        store.remove(key)
    _run(tmp_path, low_contrast={"below": 0.2}, checks=[EVEN], near_duplicate={})
    assert {key: store.read(key) for key in before} == before


def test_a_check_that_does_not_import_ends_the_run_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"gates.checks: gone: no_such_package:check does not import"
    ) as caught:
        _run(tmp_path, checks=[{"name": "gone", "entry": "no_such_package:check"}])
    assert caught.value.exit_code == 2
    assert not list(tmp_path.glob("out/*/images/*"))


def _fails(tmp_path: Path) -> Store:
    """A run that failed because of two gates."""
    with pytest.raises(Incomplete) as caught:
        _run(tmp_path, low_contrast={"below": 0.5, "share": 0.05}, checks=[{**EVEN, "share": 0.4}])
    assert caught.value.exit_code == 3
    uri = next((tmp_path / "out").iterdir())
    assert str(caught.value) == (
        f"{uri}: 2 gates found too many images: "
        "low_contrast found 8 of 8 (100 %, and 5 % are allowed); "
        "even found 4 of 8 (50 %, and 40 % are allowed). "
        f"See {uri}/report/index.html. "
        f"To accept them: imagekiln aggregate {uri} --accept low_contrast --accept even"
    )
    return open_store(str(uri))


def test_a_share_that_is_exceeded_fails_the_run_and_all_the_rest_is_written(tmp_path: Path) -> None:
    store = _fails(tmp_path)
    assert not store.exists(SUCCESS_KEY)
    assert store.exists(REPORT_KEY)
    assert manifest(store).num_rows == 8


def test_what_a_gate_found_can_be_accepted_by_its_name(tmp_path: Path) -> None:
    store = _fails(tmp_path)
    with pytest.raises(
        Incomplete, match=r"even found 4 of 8 .*--accept low_contrast --accept even$"
    ):
        aggregate(store.uri, accept=["low_contrast"])
    summary = aggregate(store.uri, accept=["low_contrast", "even"])
    assert summary.accepted == ("low_contrast", "even")
    assert summary.marks == {"low_contrast": 8, "over_saturated": 0, "even": 4}
    assert store.exists(SUCCESS_KEY)


def test_a_gate_that_the_job_does_not_have_cannot_be_accepted(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS)
    with pytest.raises(
        BadInput, match="--accept evn: the job has no such gate; it has blank, safety, low_contrast"
    ):
        aggregate(planned_run.uri, accept=["evn"])


@pytest.mark.parametrize(
    ("gate", "status", "share", "passes"),
    [("blank", "blank", 0.1, False), ("safety", "filtered", 0.25, True)],
)
def test_statuses_have_a_share_too(
    gate: str, status: str, share: float, passes: bool, tmp_path: Path
) -> None:
    settings = {"gates": {gate: {"share": share}}, "limits": {"failed_share": 1}}
    planned_run = planned(tmp_path, str(tmp_path / "out"), ROWS, **settings)
    fill(planned_run, {place: not_ok(place, status) for place in (1, 5)})
    if passes:
        assert aggregate(planned_run.uri).ok == 6
        return
    with pytest.raises(
        Incomplete, match=rf"{gate} found 2 of 8 \(25 %, .* aggregate \S+ --accept {gate}$"
    ):
        aggregate(planned_run.uri)
    assert aggregate(planned_run.uri, accept=[gate]).ok == 6
