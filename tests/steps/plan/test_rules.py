from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import PROMPT_COLUMNS, SEED
from imagekiln.steps.models.facts import locate_model
from imagekiln.steps.plan.rules import rejection_rules
from tests.jobs import image_rows, job, plan, rejected

GOOD = {
    "prompt": "fine",
    "negative_prompt": "n",
    "seed": 1,
    "width": 64,
    "height": 64,
    "steps": 3,
    "guidance": 1.5,
    "sampler": "euler",
    "images": 1,
}
BAD = [
    ("prompt", None, "is null"),
    ("prompt", "", "is blank"),
    ("prompt", " \t\n", "is blank"),
    ("prompt", "x" * 4001, "is over 4000 characters"),
    ("negative_prompt", "x" * 4001, "is over 4000 characters"),
    ("width", 0, "is not a positive multiple of 8, which this model needs"),
    ("width", 65, "is not a positive multiple of 8, which this model needs"),
    ("height", -8, "is not a positive multiple of 8, which this model needs"),
    ("height", 65_544, "is not a positive multiple of 8, which this model needs"),
    ("steps", 0, "is not between 1 and 1000"),
    ("steps", 1001, "is not between 1 and 1000"),
    ("guidance", -0.5, "is not between 0 and 100"),
    ("guidance", 100.5, "is not between 0 and 100"),
    ("guidance_rescale", 1.5, "is not between 0 and 1"),
    ("images", 0, "is not between 1 and 10000"),
    ("images", 10_001, "is not between 1 and 10000"),
    ("seed", -2, f"is not between 0 and {SEED.highest}"),
    ("seed", SEED.highest + 1, f"is not between 0 and {SEED.highest}"),
    ("sampler", "Euler", "is none of default, ddim,"),
    ("sampler", "'; DROP TABLE images; --", "is none of default, ddim,"),
]
FINE = [
    ("prompt", "\U0001f525" * 4000),
    ("prompt", "\0"),
    ("negative_prompt", ""),
    ("negative_prompt", " "),
    ("width", 128),
    ("height", 8),
    ("steps", 1000),
    ("guidance", 0.0),
    ("guidance", 100.0),
    ("seed", 0),
    ("seed", SEED.highest),
    ("sampler", "default"),
]
LIMITS = {"rejected_share": 1}


def test_rule_refuses_its_row_with_column_and_reason(tmp_path: Path) -> None:
    rows = [GOOD, *({**GOOD, column: value} for column, value, _ in BAD), {**GOOD, "seed": 2}]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain(*rows))}
    planned = plan(tmp_path, pa.table(columns), limits=LIMITS)
    refused = rejected(planned)
    assert [(row["input_row"], row["column_name"]) for row in refused] == [
        (number, column) for number, (column, _, _) in enumerate(BAD, start=1)
    ]
    for row, (_, _, reason) in zip(refused, BAD, strict=True):
        assert str(row["reason"]).startswith(reason)
    assert image_rows(planned)["seed"].to_pylist() == [1, 2]


def test_value_at_its_bound_is_taken(tmp_path: Path) -> None:
    plain = {**GOOD, "negative_prompt": ""}
    rows = [
        {**plain, "id": f"{number}", column: value} for number, (column, value) in enumerate(FINE)
    ]
    planned = plan(tmp_path, pa.Table.from_pylist(rows), limits=LIMITS)
    assert planned.plan.counts.rejected_rows == 0
    made = image_rows(planned).to_pylist()
    for column, value in FINE:
        assert value in [row[column] for row in made]


def test_guidance_that_is_rescaled_must_have_an_effect(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b"], "guidance": [1.0, 5.0], "guidance_rescale": [0.7, 0.7]}
    (refused,) = rejected(plan(tmp_path, columns, limits=LIMITS))
    assert (refused["input_row"], refused["column_name"]) == (0, "guidance_rescale")


def test_row_that_breaks_several_rules_is_refused_once_for_the_first(tmp_path: Path) -> None:
    columns = {"prompt": ["a", None], "steps": [1, 0], "seed": ["1", "x"]}
    (refused,) = rejected(plan(tmp_path, columns, limits={"rejected_share": 1}))
    assert refused["column_name"] == "seed"


@pytest.mark.parametrize(
    ("defaults", "reason"),
    [
        ({"width": 100}, "width is not a positive multiple of 8, which this model needs"),
        ({"sampler": "flow_euler"}, "sampler does not fit the model: with the model's DDIM"),
    ],
)
def test_default_that_breaks_a_rule_refuses_the_job(
    tmp_path: Path, defaults: dict[str, object], reason: str
) -> None:
    with pytest.raises(BadInput, match=f"1 of 1 row was rejected: {reason}"):
        plan(tmp_path, {"prompt": ["a"]}, defaults=defaults)


def test_sizes_follow_what_the_model_needs(tmp_path: Path) -> None:
    configured = job(tmp_path, {"prompt": ["a"]})
    coarse = replace(locate_model(configured.model)[1], size_multiple=32)
    reasons = {
        rule.reason for rule in rejection_rules(configured, coarse) if rule.column == "width"
    }
    assert "is not a positive multiple of 32, which this model needs" in reasons


def test_a_sampler_that_does_not_fit_the_model_is_refused_with_those_that_do(
    tmp_path: Path,
) -> None:
    planned = plan(
        tmp_path,
        {"prompt": ["a", "b"], "sampler": ["flow_euler", "euler"]},
        limits={"rejected_share": 0.5},
    )
    (row,) = rejected(planned)
    assert (row["input_row"], row["column_name"]) == (0, "sampler")
    assert str(row["reason"]).startswith(
        "does not fit the model: with the model's DDIMScheduler work default, ddim, ddpm, "
    )


def test_every_column_with_bounds_has_one_rule_for_them(tmp_path: Path) -> None:
    configured = job(tmp_path, {"prompt": ["a"]})
    found = rejection_rules(configured, locate_model(configured.model)[1])
    bounded = [rule.column for rule in found if rule.reason.startswith("is not between")]
    assert sorted(bounded) == sorted(column.name for column in PROMPT_COLUMNS if column.bounds)
