"""Commands to type."""

import subprocess
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.acceptance import format_aggregate_command
from imagekiln.steps.job.job import Job
from imagekiln.steps.runtime.sanitize import quote_shell_word
from tests.runs import job, write_prompts


@pytest.mark.parametrize(
    "text",
    [
        "plain/run",
        "a run; rm -rf '$HOME'",
        "s3://bücket/🖼",
        "it's \x1b[31mred\\",
        "two\nlines",
        "\u202eturned",
        "\udcff",
    ],
)
def test_a_word_reaches_the_program_as_it_was(text: str) -> None:
    word = quote_shell_word(text)
    assert word.isprintable()
    said = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], check=True, capture_output=True
    ).stdout
    assert said.decode(errors="surrogateescape") == text


def test_a_word_is_never_an_option() -> None:
    assert quote_shell_word("-rf") == "./-rf"


@pytest.fixture
def small(tmp_path: Path) -> Job:
    """A job that accepts 0.25 of its images not being ok."""
    return job(
        write_prompts(tmp_path / "prompts.parquet"),
        str(tmp_path / "out"),
        limits={"failed_share": 0.25},
    )


def test_aggregating_names_what_differs_from_the_job(small: Job) -> None:
    assert format_aggregate_command("run", small, 0.25, ()) == "imagekiln aggregate run"
    asked = format_aggregate_command("a run", small, 0.5, ("blank", "own"))
    assert asked == "imagekiln aggregate 'a run' --failed-share 0.5 --accept blank --accept own"
