"""A job played through without a cluster: what is printed."""

from pathlib import Path

from tests.workflows.cli.commands import ROWS, kiln, parse_json

QUICK = ("--images", "100000", "--gpus", "4", "--set", "shard.seconds_per_image=0.5")


def test_simulation_says_when_a_run_ends_what_it_costs_and_what_limits_it(job: str) -> None:
    printed = kiln("simulate", job, *QUICK, "--price", "2", "--losses", "0.05")
    assert printed.exit_code == 0, printed.stderr
    result = parse_json(
        kiln("simulate", job, *QUICK, "--price", "2", "--losses", "0.05", "--format", "json")
    )
    assert result["images"] == 100_000
    assert f"cost:          {result['cost']:,.2f}\n" in printed.stdout
    assert "Limits, nearest first:\n" in printed.stdout


def test_exceeded_limit_comes_with_what_to_set(job: str) -> None:
    done = kiln("simulate", job, *QUICK, "--set", "cluster.profile=l4", "--load-seconds", "900000")
    assert done.exit_code == 0, done.stderr
    assert "EXCEEDED: set `days: " in done.stdout


def test_job_whose_images_take_nobody_knows_how_long_is_refused(job: str) -> None:
    done = kiln("simulate", job, "--images", "1000")
    assert done.exit_code == 2
    assert "job tiny: the time of an image is unknown. Run `imagekiln tune JOB`" in done.stderr
    assert "shard.seconds_per_image" in done.stderr


def test_prompts_of_a_date_are_counted_by_every_command_that_reads_them(
    job: str, tmp_path: Path
) -> None:
    day = tmp_path / "2026-11-21.csv"
    day.write_text("prompt\na circle\n")
    dated = ("--set", f"prompts={tmp_path}/{{date}}.csv")
    assert "needs a date" in kiln("estimate", job, *dated).stderr
    assert "needs a date" in kiln("simulate", job, *dated).stderr
    estimate = kiln("estimate", job, *dated, "--date", "2026-11-21", "--format", "json")
    assert parse_json(estimate)["images"] == 1
    simulated = kiln("simulate", job, *QUICK[2:], *dated, "--date", "2026-11-21")
    assert simulated.exit_code == 0, simulated.stderr
    checked = kiln("doctor", job, *dated, "--date", "2026-11-21").stdout
    assert f"ok       prompts: {day} can be read" in checked


def test_images_are_those_of_the_prompts_where_their_rows_can_be_counted(
    job: str, tmp_path: Path
) -> None:
    counted = kiln("simulate", job, *QUICK[2:], "--set", "defaults.images_per_prompt=2")
    assert counted.exit_code == 0, counted.stderr
    assert f"{2 * len(ROWS)} in " in counted.stdout

    text = tmp_path / "prompts.txt"
    text.write_text("prompt\na circle\n")
    refused = kiln("simulate", job, *QUICK[2:], "--set", f"prompts={text}")
    assert refused.exit_code == 2
    assert "Pass --images." in refused.stderr
