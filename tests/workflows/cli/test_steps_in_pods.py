"""The plan command as a pod runs it: the job out of the environment, and short texts for Argo."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.storage import open_store
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.templates.dag import MAX_PODS
from tests.language_models import language_model
from tests.runs import fill, not_ok

JOB = """
name: shapes
prompts: bundled:prompts.parquet
output: {output}
model: {{id: "bundled:shapes", dtype: float32}}
shard: {{images: 64}}
{more}
"""


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plan(tmp_path: Path, job: str, *options: str, **variables: str) -> Result:
    environment = {"IMAGEKILN_JOB": _encoded(job)} | variables
    return CliRunner(env=environment).invoke(
        main, ["plan", "--argo", "--device", "cpu", "--outputs", str(tmp_path / "out"), *options]
    )


def _job(tmp_path: Path, more: str = "") -> str:
    return JOB.format(output=json.dumps(str(tmp_path / "runs")), more=more)


def _outputs(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir()}


def _finish(run: str, outcomes: Mapping[int, EncodedImage] | None = None) -> None:
    """Make the parts of a planned run, and aggregate it."""
    fill(PlanResult(load_plan(open_store(run)), run, adopted=True), outcomes)
    aggregate(run)


def _plan_file(run: str) -> dict[str, Any]:
    content = json.loads((Path(run) / "plan.json").read_bytes())
    assert isinstance(content, dict)
    return content


def test_pod_plans_and_leaves_what_argo_needs(tmp_path: Path) -> None:
    done = _plan(tmp_path, _job(tmp_path, "cluster: {parallelism: 3, priority_class: nights}"))
    assert done.exit_code == 0, done.output
    left = _outputs(tmp_path)
    shards = len(_plan_file(left["run"])["shards"])
    assert 0 < shards <= MAX_PODS
    assert left == {
        "run": left["run"],
        "pods": str(shards),
        "canary": "0",
        "pods_here": str(shards),
        "workflows": "0",
        "parallelism": "3",
        "priority_class": "nights",
        "job_name": "shapes",
        "run_id": Path(left["run"]).name,
        "images": "135",
        "exports": "0",
    }


def test_canary_is_one_pod_before_the_others(tmp_path: Path) -> None:
    done = _plan(tmp_path, _job(tmp_path, "cluster: {canary: 8}"))
    assert done.exit_code == 0, done.output
    left = _outputs(tmp_path)
    plan = load_plan(open_store(left["run"]))
    assert plan.shards[0].images == plan.sample_images == 8
    pods = len(plan.shards)
    assert (left["pods"], left["canary"], left["pods_here"]) == (str(pods), "1", str(pods - 1))

    _finish(left["run"])
    assert _plan(tmp_path, _job(tmp_path, "cluster: {canary: 8}")).exit_code == 0
    left = _outputs(tmp_path)
    assert (left["pods"], left["canary"], left["pods_here"]) == ("0", "0", "0")


def _rewrite(job: str, **variables: str) -> Result:
    environment = {"IMAGEKILN_JOB": _encoded(job)} | variables
    return CliRunner(env=environment).invoke(main, ["rewrite", "--argo", "--device", "cpu"])


def test_a_pod_rewrites_the_prompts_for_the_pod_that_plans(tmp_path: Path) -> None:
    model = json.dumps({"id": str(language_model("gpt2")), "dtype": "float32"})
    job = _job(tmp_path, f"rewrite: {{model: {model}}}")
    count = tmp_path / "progress"
    first = _rewrite(job, ARGO_PROGRESS_FILE=str(count))
    assert first.exit_code == 0, first.output
    done, prompts = map(int, count.read_text().split("/"))
    assert 0 < done == prompts
    # A pod that is retried has nothing to do.
    assert "\nrewritten: 0\n" in _rewrite(job).output
    assert _plan(tmp_path, job).exit_code == 0


def test_pod_copies_the_run_as_its_job_asks(tmp_path: Path) -> None:
    copies = json.dumps([{"to": str(tmp_path / "copies"), "format": "files"}])
    job = _job(tmp_path, f"export: {copies}")
    assert _plan(tmp_path, job).exit_code == 0
    outputs = _outputs(tmp_path)
    assert outputs["exports"] == "1"
    run = outputs["run"]
    _finish(run)
    environment = {"IMAGEKILN_JOB": _encoded(job)}
    done = CliRunner(env=environment).invoke(main, ["copy", "--argo", f"--run={run}"])
    assert done.exit_code == 0, done.output
    assert len([*(tmp_path / "copies").rglob("*.png")]) == 135
    assert f"{tmp_path}/copies" in done.output


@pytest.mark.parametrize("command", ["plan", "rewrite"])
def test_job_is_named_once(command: str) -> None:
    for arguments, says in (
        ([], "Missing argument 'JOB'"),
        (["job.yaml", "--argo"], "Pass either"),
    ):
        done = CliRunner().invoke(main, [command, *arguments])
        assert (done.exit_code, says in done.output) == (2, True)


def test_pod_of_a_bad_canary_ends_with_the_sentence_of_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagekiln.workflows.pod.workers.generate_shards", lambda *_: None)
    assert _plan(tmp_path, _job(tmp_path, "cluster: {canary: 8}")).exit_code == 0
    run = _outputs(tmp_path)["run"]
    planned = PlanResult(load_plan(open_store(run)), run, adopted=True)
    fill(planned, {3: not_ok(3)})
    for workers in ("1", "2"):
        pod = ("generate", "--shard", "0", "--workers", workers, "--judge", "true", "--", run)
        done = CliRunner().invoke(main, pod)
        assert done.exit_code == 3
        assert (
            "the first 8 images of 135 are not as the job asks: 1 of 8 images are not ok"
            in done.output
        )
    # Without a canary, the same run goes on.
    assert CliRunner().invoke(main, ("generate", "--shard", "0", "--", run)).exit_code == 0


def test_night_with_nothing_new_has_no_shards(tmp_path: Path) -> None:
    assert _plan(tmp_path, _job(tmp_path)).exit_code == 0
    _finish(_outputs(tmp_path)["run"])
    done = _plan(tmp_path, _job(tmp_path, "skip_existing: true\nrun_id: tonight"))
    assert done.exit_code == 0, done.output
    assert "135 already in earlier runs" in done.output
    left = _outputs(tmp_path)
    assert {left[name] for name in ("images", "pods", "pods_here", "workflows")} == {"0"}
    assert aggregate(left["run"]).images == 0


def test_date_names_the_run_and_twice_gives_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        assert (
            _plan(tmp_path, _job(tmp_path), IMAGEKILN_LOGICAL_DATE="2026-11-21T00:30:00Z").exit_code
            == 0
        )
        assert Path(_outputs(tmp_path)["run"]).name == "shapes-20261121T003000Z"


def test_parameters_go_on_top_of_the_job(tmp_path: Path) -> None:
    settings = _encoded("batch.images=2\n\n defaults.negative_prompt={{a}} 'b' \"c\" $(d)\n")
    done = _plan(
        tmp_path, _job(tmp_path), IMAGEKILN_SETTINGS=settings, IMAGEKILN_RUN_ID=_encoded(" mine ")
    )
    assert done.exit_code == 0, done.output
    run = _outputs(tmp_path)["run"]
    job = _plan_file(run)["job"]
    assert Path(run).name == job["run_id"] == "mine"
    assert job["batch"]["images"] == 2
    assert job["defaults"]["negative_prompt"] == "{{a}} 'b' \"c\" $(d)"
    assert job["device"] == "cpu"


def test_job_is_read_from_where_job_uri_says(tmp_path: Path, s3_bucket: str) -> None:
    open_store(s3_bucket).create("jobs/shapes.yaml", _job(tmp_path).encode())
    done = _plan(tmp_path, "", IMAGEKILN_JOB_URI=_encoded(f"{s3_bucket}/jobs/shapes.yaml"))
    assert done.exit_code == 0, done.output
    missing = _plan(tmp_path, "", IMAGEKILN_JOB_URI=_encoded(f"{s3_bucket}/jobs/none.yaml"))
    assert missing.exit_code == 2
    assert "jobs/none.yaml" in missing.output


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"IMAGEKILN_JOB": ""}, "neither job nor job-uri"),
        ({"IMAGEKILN_JOB_URI": _encoded("s3://jobs/a.yaml")}, "both job and job-uri"),
        ({"IMAGEKILN_JOB": "{{=sprig.b64enc(x)}}"}, "IMAGEKILN_JOB"),
        ({"IMAGEKILN_LOGICAL_DATE": "{{workflow.scheduledTime}}"}, "is not an ISO 8601 date"),
        (
            {"IMAGEKILN_LOGICAL_DATE": "2026-11-21", "IMAGEKILN_TIMEZONE": _encoded("Mars/Phobos")},
            "Mars/Phobos",
        ),
        ({"IMAGEKILN_RUN_ID": _encoded("a b")}, "run_id"),
        ({"IMAGEKILN_RETRY": _encoded("{{x}}")}, "Write true"),
        ({"IMAGEKILN_SETTINGS": _encoded("device=mps")}, "device"),
        ({"IMAGEKILN_SETTINGS": _encoded('["device=cpu"')}, "is not a JSON list"),
        ({"IMAGEKILN_SETTINGS": _encoded("[1]")}, "settings: is not a JSON list of strings"),
        ({"IMAGEKILN_SETTINGS": _encoded("prompts=x/{date}.parquet")}, "needs a date"),
    ],
)
def test_parameter_that_cannot_be_is_said_and_never_retried(
    variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = _plan(tmp_path, _job(tmp_path), **variables)
    assert done.exit_code == 2
    assert said in done.output


def _with_failures(tmp_path: Path, *bad: int) -> str:
    """A run of the job in which these images failed, accounted for."""
    assert _plan(tmp_path, _job(tmp_path, "limits: {failed_share: 1}")).exit_code == 0
    run = _outputs(tmp_path)["run"]
    _finish(run, {place: not_ok(place) for place in bad})
    return run


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("by", ["option", "parameter"])
def test_retry_is_announced_once_and_its_address_is_handed_out_as_the_run(
    by: str, tmp_path: Path
) -> None:
    run = _with_failures(tmp_path, 3, 100)
    options = ("--retry",) if by == "option" else ()
    variables = {} if by == "option" else {"IMAGEKILN_RETRY": _encoded(" True ")}
    for _ in range(2):  # asked for twice, it is the same retry
        done = _plan(tmp_path, _job(tmp_path, "limits: {failed_share: 1}"), *options, **variables)
        assert done.exit_code == 0, done.output
        left = _outputs(tmp_path)
        assert left["run"] == f"{run}/retry-1"
        assert (left["pods"], left["pods_here"], left["images"]) == ("1", "1", "2")
    assert [retry.number for retry in open_run(run).head.commit.retries] == [1]


def test_retry_where_nothing_is_left_needs_no_pods_and_hands_out_the_run(tmp_path: Path) -> None:
    run = _with_failures(tmp_path)
    done = _plan(tmp_path, _job(tmp_path, "limits: {failed_share: 1}"), "--retry")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f" 0 images in 0 shards: {run}\n")
    left = _outputs(tmp_path)
    assert left["run"] == run
    assert {left[name] for name in ("images", "pods", "pods_here", "workflows")} == {"0"}
    assert open_run(run).head.commit.retries == ()


@pytest.mark.parametrize("sign", ["{{", "}}", "$("])
def test_output_that_argo_would_read_as_its_own_is_refused(sign: str, tmp_path: Path) -> None:
    done = _plan(tmp_path, JOB.format(output=json.dumps(str(tmp_path / f"a{sign}b")), more=""))
    assert done.exit_code == 2
    assert "Argo cannot pass this URI" in done.output
