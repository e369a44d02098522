"""How a run ended, and what to do next."""

import shlex
from dataclasses import replace

import click
import pytest

from imagekiln.steps import summary
from imagekiln.steps.gate_settings import Gate, Gates
from imagekiln.steps.summary import Summary
from imagekiln.steps.verdict import Verdict, verdict
from imagekiln.workflows.cli import main
from tests.runs import finished

URI = "s3://bucket/a run; rm -rf '$HOME'"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """The sums of a run of 20 good images."""
    return summary.load(finished(tmp_path_factory.mktemp("verdict") / "run"))


def _words(found: Verdict) -> list[list[str]]:
    """Every command as words, having been one that the program takes."""
    words = [shlex.split(command)[1:] for command in found.commands]
    for name, *rest in words:
        main.commands[name].make_context(name, list(rest), resilient_parsing=False)
    return words


def test_a_whole_run_is_finished(whole: Summary) -> None:
    found = verdict(whole, URI, Gates())
    assert (found.kind, found.headline) == ("finished", "Finished: all 20 images are ok.")
    assert _words(found) == [["verify", URI]]


def test_a_run_within_its_limits_is_finished(whole: Summary) -> None:
    found = verdict(replace(whole, statuses={"ok": 19, "failed": 1}, failed_share=0.05), URI, Gates())
    assert (found.kind, found.headline) == ("finished", "Finished: 19 of 20 images are ok.")
    assert [words[0] for words in _words(found)] == ["verify", "retry"]


def test_an_incomplete_run_names_the_shards_to_run(whole: Summary) -> None:
    parts = ("images/00003-0001.parquet", "images/00003-0002.parquet", "images/00012-0000.tar")
    lacking = replace(whole, statuses={"ok": 10, "missing": 10}, missing_parts=parts, missing_parts_count=3)
    found = verdict(lacking, URI, Gates())
    assert (found.kind, found.headline) == ("incomplete", "Incomplete: 10 of 20 images are missing.")
    assert _words(found) == [
        ["generate", URI, "--shard", "3"],
        ["generate", URI, "--shard", "12"],
        ["aggregate", URI],
    ]


def test_a_run_with_too_many_failures_says_how_to_accept_them(whole: Summary) -> None:
    found = verdict(replace(whole, statuses={"ok": 13, "failed": 7}), URI, Gates())
    assert (found.kind, found.headline) == ("failed", "Too many images failed: 7 of 20 images are not ok.")
    assert _words(found)[-1] == ["aggregate", URI, "--failed-share", "0.35"]


def test_the_commands_of_no_command_are_not_shown() -> None:
    with pytest.raises(click.UsageError):
        _words(Verdict("finished", "", "", ("imagekiln verify --never",)))


def test_a_run_that_a_gate_fails_is_not_finished_and_says_how_to_accept_it(whole: Summary) -> None:
    gates = Gates(blank=Gate(share=0.1))
    blank = replace(whole, statuses={"ok": 17, "blank": 3}, failed_share=0.2)
    found = verdict(blank, URI, gates)
    assert (found.kind, found.headline) == ("failed", "The gates found too much: blank.")
    assert "blank found 15 % of the images, and its share is 10 %" in found.advice
    assert _words(found) == [["aggregate", URI, "--failed-share", "0.2", "--accept", "blank"]]
    assert verdict(replace(blank, accepted=("blank",)), URI, gates).kind == "finished"
