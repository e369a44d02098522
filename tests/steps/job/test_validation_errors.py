"""The sentence for each mistake in a job."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job
from tests.smallest import SMALLEST


def _message(**settings: object) -> str:
    with pytest.raises(BadInput) as caught:
        validate_job({**SMALLEST, **settings}, "job.yaml")
    return str(caught.value).removeprefix("job.yaml: ")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("bf16", 'model.dtype is "bf16"; write "bfloat16".'),
        ("Float32", 'model.dtype is "Float32"; write "float32".'),
        ("fp16", 'model.dtype is "fp16"; write "float16".'),
        ("fp32", 'model.dtype is "fp32"; write "float32".'),
        ("half", 'model.dtype is "half"; write "float16".'),
        ("int8", 'model.dtype is "int8"; write one of float32, bfloat16, float16.'),
        (None, "model.dtype is empty; write one of float32, bfloat16, float16."),
        (16, "model.dtype is 16; write one of float32, bfloat16, float16."),
    ],
)
def test_wrong_choice_is_reported_with_the_nearest(value: object, message: str) -> None:
    assert _message(model={"id": "x", "dtype": value}) == message


@pytest.mark.parametrize(
    ("value", "nearest"),
    [("Euler", "euler"), ("euler a", "euler_a"), ("dpm++ 2m karras", "dpmpp_2m_karras")],
)
def test_samplers_are_suggested_by_their_common_names(value: str, nearest: str) -> None:
    assert (
        _message(defaults={"sampler": value})
        == f'defaults.sampler is "{value}"; write "{nearest}".'
    )


def test_gpu_means_cuda() -> None:
    assert _message(device="gpu") == 'device is "gpu"; write "cuda".'


def test_all_choices_are_listed_where_none_is_near() -> None:
    assert _message(metadata="zip") == 'metadata is "zip"; write one of all, mark, none.'


@pytest.mark.parametrize("value", ["parquet", "webdataset", "files"])
def test_format_of_a_run_says_what_to_use_instead(value: str) -> None:
    assert _message(format=value) == (
        "format is not a setting, since a run is Parquet; remove it, and for WebDataset or a "
        "folder of pictures set export, or type: imagekiln export RUN FOLDER --as webdataset."
    )


def test_setting_of_another_group_is_reported_with_its_path() -> None:
    assert _message(width=512) == "width is not a setting; write defaults.width."
    assert _message(steps=5) == "steps is not a setting; write defaults.steps."
    assert _message(stpes=5) == "stpes is not a setting; write defaults.steps."
    assert _message(guidance=5) == "guidance is not a setting; write defaults.guidance."
    assert _message(**{"failed-share": 0.1}) == (
        "failed-share is not a setting; write limits.failed_share."
    )
    assert (
        _message(defaults={"failed_share": 9})
        == "defaults.failed_share is not a setting; write limits.failed_share."
    )


def test_setting_like_no_other_is_reported_with_all_of_its_group() -> None:
    assert (
        _message(model={"id": "x", "zzz": 1})
        == "model.zzz is not a setting; the settings of model are id, revision, config, "
        "dtype, variant, controlnet, ip_adapter, loras."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"defaults": {"steps": 0}},
            "defaults.steps is 0; it should be greater than or equal to 1.",
        ),
        ({"output": ""}, 'output is ""; write the folder or URI that holds the runs.'),
        ({"output": 3}, "output is 3; put it in quotes."),
        ({"carry": "a"}, 'carry is "a"; write a list, such as [one, two].'),
        ({"carry": ["a", "a"]}, 'carry lists "a" twice; remove one of them.'),
        ({"prompts": []}, "prompts is an empty list; list at least one."),
        (
            {"prompts": {"template": "a", "b": "c"}},
            "prompts.b is not a setting; the settings of prompts are template, "
            "negative_template, table, wildcards, combinations, sweep, texts.",
        ),
        ({"batch": 8}, "batch is 8; it is a group: set batch.images, batch.tuning."),
        (
            {"shard": {"images": 1, "minutes": 1}},
            "shard has both shard.images and shard.minutes; remove one of them.",
        ),
        (
            {"name": "Big"},
            'name is "Big"; write at most 40 lower-case letters, digits and hyphens, '
            "no hyphen first or last.",
        ),
        (
            {"model": {"id": "a/b", "revision": "../main"}},
            'model.revision is "../main"; write the commit, branch or tag of a hub id; '
            "where absent, main. A plan freezes the commit.",
        ),
        (
            {"model": {"id": "a", "loras": {"style": "style.safetensors"}}},
            'model.loras.style is "style.safetensors"; '
            "write model.loras.style: {id: style.safetensors}.",
        ),
        (
            {"model": "bundled:shapes"},
            'model is "bundled:shapes"; write model: {id: bundled:shapes}.',
        ),
        (
            {"format": "jpg"},
            "format is not a setting; for such images, set encoding.kind: jpeg.",
        ),
    ],
)
def test_wrong_value_is_reported_with_what_to_write(
    settings: dict[str, object], message: str
) -> None:
    assert _message(**settings) == message


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "line\nbreak", '"quoted"', {"deep": ["x"] * 10_000}, ["x"] * 10_000]
)
def test_sentence_stays_one_short_line_whatever_was_written(value: object) -> None:
    message = _message(name=value)
    assert "\n" not in message
    assert len(message) < 200


def test_missing_settings_are_reported_with_what_to_write() -> None:
    with pytest.raises(BadInput) as caught:
        validate_job({"name": "a"})
    assert str(caught.value).splitlines() == [
        "job: prompts is missing; write paths, globs, folders or URIs of Parquet, CSV, JSON or "
        "Arrow files, a template, or some texts.",
        "job: output is missing; write the folder or URI that holds the runs.",
        "job: model is missing; set model.id.",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"skip_existing": "maybe"},
            'skip_existing is "maybe"; write true or false.',
        ),
        (
            {"model": {"id": "a", "loras": ["b"]}},
            "model.loras is a list; write a group of settings.",
        ),
    ],
)
def test_every_kind_of_setting_has_a_remedy(settings: dict[str, object], message: str) -> None:
    assert _message(**settings) == message


def test_mistake_without_a_line_of_its_own_is_reported_at_its_groups() -> None:
    with pytest.raises(BadInput, match=r"^f:3: model\.id is missing; write a local folder, .*\.$"):
        validate_job({**SMALLEST, "model": {}}, "f", {(): "f:1", ("model",): "f:3"})
