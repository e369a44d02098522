"""How a run ended, and what to do next."""

import shlex
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from imagekiln.steps.aggregate.image_counts import FailureCause
from imagekiln.steps.aggregate.preview import Preview, judge_preview
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.aggregate.verdict import RunVerdict, judge_run, require_finished
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.job.job import Job
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.cli.text import format_summary
from tests.runs import finished, job, write_prompts

URI = "s3://bucket/a run; rm -rf '$HOME'"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that accepts no failure, and whose gates have shares."""
    folder = tmp_path_factory.mktemp("plain")
    gates = {"low_contrast": {"share": 0.1}, "safety": {"share": 0.1}, "over_saturated": {}}
    return job(write_prompts(folder / "prompts.parquet"), str(folder / "out"), gates=gates)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """The sums of a run of 20 good images."""
    return load_summary(finished(tmp_path_factory.mktemp("verdict") / "run"))


def _words(result: RunVerdict) -> list[list[str]]:
    """Every command as words, having been one that the program takes."""
    commands = chain.from_iterable(result.steps.values())
    words = [shlex.split(command)[1:] for command in commands]
    for name, *rest in words:
        main.commands[name].make_context(name, list(rest), resilient_parsing=False)
    return words


def test_a_whole_run_is_finished(whole: Summary, plain: Job) -> None:
    result = judge_run(whole, plain, URI)
    assert (result.kind, result.headline) == ("finished", "Finished: all 20 images are ok.")
    assert _words(result) == [["verify", URI]]


def test_a_run_within_its_limits_is_finished(whole: Summary, plain: Job) -> None:
    result = judge_run(
        replace(whole, statuses={"ok": 19, "failed": 1}, failed_share=0.05), plain, URI
    )
    assert (result.kind, result.headline) == ("finished", "Finished: 19 of 20 images are ok.")
    assert [words[0] for words in _words(result)] == ["verify", "retry"]


@pytest.mark.parametrize("share", [29, 57])
def test_a_share_that_is_just_what_is_accepted_is_accepted(
    share: int, whole: Summary, plain: Job
) -> None:
    run = replace(whole, images=100, statuses={"ok": 100 - share, "failed": share})
    accepted = replace(run, failed_share=share / 100)
    assert run.share_to_accept == share / 100
    assert judge_run(accepted, plain, URI).kind == "finished"
    gates = {"low_contrast": {"share": share / 100}}
    strict = plain.model_copy(update={"gates": type(plain.gates).model_validate(gates)})
    marked = replace(whole, images=100, statuses={"ok": 100}, marks={"low_contrast": share})
    assert judge_run(marked, strict, URI).kind == "finished"


def test_a_run_from_which_images_were_taken_down_counts_them(whole: Summary, plain: Job) -> None:
    one = replace(whole, statuses={"ok": 19, "forgotten": 1})
    expected = "Finished: 19 images are ok, 1 was taken down."
    assert judge_run(one, plain, URI).headline == expected
    best = replace(whole, statuses={"ok": 4, "outscored": 14, "forgotten": 2})
    expected = "Finished: 4 images are ok, the best of 20 candidates, 2 were taken down."
    assert judge_run(best, plain, URI).headline == expected


def test_the_causes_of_images_that_are_not_ok_leave_out_candidates_that_lost(
    whole: Summary, plain: Job
) -> None:
    best = replace(
        whole,
        statuses={"failed": 4, "ok": 4, "outscored": 12},
        failures=(FailureCause("outscored", "a fault", 9), FailureCause("failed", "a fault", 4)),
    )
    preview = Preview(URI, "page", 100, best)
    for result in (judge_run(best, plain, URI), judge_preview(preview, plain)):
        assert result.error is not None
        assert ": 4 failed (a fault)" in result.error
        assert "outscored" not in result.error


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"images": 0, "statuses": {}},
        {"statuses": {"ok": 19, "failed": 1}, "failed_share": 0.1},
        {"statuses": {"ok": 19, "missing": 1}},
        {"statuses": {"ok": 10, "failed": 10}},
        {"marks": {"low_contrast": 20}},
    ],
)
def test_rejected_rows_are_part_of_every_verdict(
    changes: dict[str, Any], whole: Summary, plain: Job
) -> None:
    lossy = replace(whole, rows=25, rejected_rows=5, rejected_list="rejected.parquet", **changes)
    sentence = "5 of 25 rows were rejected (rejected.parquet)."
    assert judge_run(lossy, plain, URI).advice.startswith(sentence)
    assert judge_preview(Preview(URI, "page", 100, lossy), plain).advice.startswith(sentence)
    assert format_summary(lossy).endswith(f", {sentence}")


def test_an_incomplete_run_names_the_shards_to_run(whole: Summary, plain: Job) -> None:
    parts = ("images/00003-0001.parquet", "images/00003-0002.parquet", "images/00012-0000.parquet")
    lacking = replace(
        whole, statuses={"ok": 10, "missing": 10}, missing_parts=parts, missing_parts_count=3
    )
    result = judge_run(lacking, plain, URI)
    assert (result.kind, result.headline) == (
        "incomplete",
        "Incomplete: 10 of 20 images are missing.",
    )
    assert _words(result) == [
        ["generate", URI, "--shard", "3"],
        ["generate", URI, "--shard", "12"],
        ["aggregate", URI],
    ]


def test_what_is_missing_hides_nothing_else_that_is_wrong(whole: Summary, plain: Job) -> None:
    lacking = replace(
        whole,
        statuses={"ok": 12, "failed": 3, "missing": 5},
        missing_parts=("images/00003-0001.parquet",),
        missing_parts_count=1,
        marks={"low_contrast": 5},
    )
    failed = replace(whole, statuses={"ok": 17, "failed": 3}, marks={"low_contrast": 5})
    gates = "low_contrast found 5 of 20 (25 %, and 10 % are allowed)"
    for run in (lacking, failed):
        result = judge_run(run, plain, URI)
        preview = judge_preview(Preview(URI, "page", 100, run), plain)
        for verdict in (result, preview):
            assert "3 of 20 images are not ok" in verdict.headline
            assert "1 gate found too many images" in verdict.headline
            assert gates in str(verdict.error)
    within = replace(lacking, failed_share=0.5, accepted=("low_contrast",))
    assert judge_run(within, plain, URI).headline == "Incomplete: 5 of 20 images are missing."


def test_a_run_with_too_many_failures_says_how_to_accept_them(whole: Summary, plain: Job) -> None:
    result = judge_run(replace(whole, statuses={"ok": 13, "failed": 7}), plain, URI)
    assert (result.kind, result.headline) == (
        "failed",
        "Failed: 7 of 20 images are not ok.",
    )
    assert _words(result)[-1] == ["aggregate", URI, "--failed-share", "0.35"]


def test_a_gate_that_found_too_many_is_no_success(whole: Summary, plain: Job) -> None:
    marks = {"low_contrast": 5, "over_saturated": 20}
    result = judge_run(replace(whole, marks=marks), plain, URI)
    assert (result.kind, result.headline) == ("failed", "Failed: 1 gate found too many images.")
    assert "low_contrast found 5 of 20 (25 %, and 10 % are allowed)" in str(result.error)
    assert _words(result) == [["aggregate", URI, "--accept", "low_contrast"]]
    accepted = judge_run(replace(whole, marks=marks, accepted=("low_contrast",)), plain, URI)
    assert accepted.kind == "finished"


def test_one_command_accepts_failures_and_gates(whole: Summary, plain: Job) -> None:
    lacking = replace(
        whole,
        statuses={"ok": 13, "filtered": 7},
        marks={"low_contrast": 5},
        accepted=("low_contrast",),
    )
    accept = ["--accept", "low_contrast", "--accept", "safety"]
    assert _words(judge_run(lacking, plain, URI))[-1] == [
        "aggregate",
        URI,
        "--failed-share",
        "0.35",
        *accept,
    ]


def test_a_run_without_new_images_says_so(whole: Summary, plain: Job) -> None:
    result = judge_run(replace(whole, images=0, statuses={}, existing_images=7), plain, URI)
    assert (result.kind, result.headline) == ("finished", "Finished: there was no image to make.")
    assert result.advice == "Earlier runs have made 7 images of these rows."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"statuses": {"ok": 10, "missing": 10}}, "10 of 20 images are missing"),
        ({"statuses": {"ok": 13, "failed": 7}}, "7 of 20 images are not ok"),
        ({"marks": {"low_contrast": 5}}, "low_contrast found 5 of 20"),
    ],
)
def test_a_run_that_is_not_finished_raises_with_the_commands_that_the_report_shows(
    changes: dict[str, object], sentence: str, whole: Summary, plain: Job
) -> None:
    verdict = judge_run(replace(whole, **changes), plain, URI)  # type: ignore[arg-type]  # fields of a summary
    with pytest.raises(Incomplete) as caught:
        require_finished(verdict)
    assert str(caught.value).startswith(f"{URI}: ")
    assert sentence in str(caught.value)
    if verdict.kind == "failed":
        assert all(
            command in str(caught.value) for command in chain.from_iterable(verdict.steps.values())
        )
