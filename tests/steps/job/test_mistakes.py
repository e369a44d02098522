import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job

SMALLEST = {"name": "a", "prompts": "p.parquet", "output": "out", "model": {"id": "bundled:shapes"}}


def _told(**settings: object) -> str:
    with pytest.raises(BadInput) as caught:
        validate_job({**SMALLEST, **settings}, "job.yaml")
    return str(caught.value).removeprefix("job.yaml: ")


@pytest.mark.parametrize(
    ("given", "told"),
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
def test_wrong_choice_is_told_with_the_nearest(given: object, told: str) -> None:
    assert _told(model={"id": "x", "dtype": given}) == told


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("Euler", "euler"), ("euler a", "euler_a"), ("dpm++ 2m karras", "dpmpp_2m_karras")],
)
def test_samplers_are_found_by_what_others_call_them(given: str, nearest: str) -> None:
    assert (
        _told(defaults={"sampler": given}) == f'defaults.sampler is "{given}"; write "{nearest}".'
    )


def test_gpu_means_cuda() -> None:
    assert _told(device="gpu") == 'device is "gpu"; write "cuda".'


def test_choices_are_told_where_none_is_near() -> None:
    assert _told(format="zip") == 'format is "zip"; write one of parquet, webdataset, files.'


def test_setting_of_another_group_is_told_with_its_place() -> None:
    assert _told(width=512) == "width is no setting; write columns.width or defaults.width."
    assert (
        _told(defaults={"prompt_chars": 9})
        == "defaults.prompt_chars is no setting; write limits.prompt_chars."
    )


def test_setting_like_no_other_is_told_with_all_of_its_group() -> None:
    assert (
        _told(model={"id": "x", "zzz": 1})
        == "model.zzz is no setting; write one of id, revision, dtype, "
        "controlnet, ip_adapter, loras."
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"defaults": {"steps": 0}}, "defaults.steps is 0; write 1 or more."),
        ({"defaults": {"steps": 2000}}, "defaults.steps is 2000; write 1000 or less."),
        ({"defaults": {"seed": 2**63}}, f"defaults.seed is {2**63}; write less than {2**63}."),
        ({"shard": {"minutes": 0}}, "shard.minutes is 0; write more than 0."),
        ({"defaults": {"steps": 2.5}}, "defaults.steps is 2.5; write a whole number."),
        ({"defaults": {"steps": "many"}}, 'defaults.steps is "many"; write a whole number.'),
        ({"defaults": {"steps": True}}, "defaults.steps is true or false; write a number."),
        ({"defaults": {"guidance": "much"}}, 'defaults.guidance is "much"; write a number.'),
        (
            {"defaults": {"guidance": float("nan")}},
            "defaults.guidance is nan; write a finite number.",
        ),
        ({"output": ""}, 'output is ""; write something.'),
        ({"output": "a\0b"}, "output has a NUL character; remove it."),
        ({"output": 3}, "output is 3; put it in quotes."),
        ({"output": False}, "output is false; put it in quotes."),
        ({"output": None}, "output is empty; write text."),
        ({"output": ["a"]}, "output is a list; write text."),
        ({"carry": "a"}, 'carry is "a"; write a list, such as [one, two].'),
        ({"carry": ["a", "a"]}, "carry names a column twice; name it once."),
        ({"carry": [""]}, 'carry.0 is ""; write something.'),
        ({"prompts": []}, "prompts is an empty list; write at least one."),
        ({"prompts": {"a": "b"}}, "prompts is a group of settings; write text."),
        ({"prompts": ["a", ""]}, 'prompts.1 is ""; write something.'),
        ({"batch": 8}, "batch is 8; write settings in it: images, tuning, gpu."),
        ({"batch": None}, "batch is empty; write settings in it: images, tuning, gpu."),
        (
            {"shard": {"images": 1, "minutes": 1}},
            "shard has both images and minutes; keep one of them.",
        ),
        (
            {"name": "Big"},
            'name is "Big"; write at most 40 lower-case letters, digits and, between them, hyphens.',
        ),
        (
            {"model": {"id": "a/b", "revision": "main"}},
            'model.revision is "main"; write the commit of a hub model, 40 hexadecimal digits.',
        ),
        (
            {"model": {"id": "a", "loras": {"a b": {"id": "c"}}}},
            'model.loras.a b is "a b"; write at most 64 letters, digits, dots, - and _.',
        ),
        (
            {"model": {"id": "a", "loras": {"style": {"id": "c", "weigth_name": "d"}}}},
            'model.loras.style.weigth_name is no setting; write "weight_name".',
        ),
        (
            {"model": {"id": "a", "loras": {"style": "style.safetensors"}}},
            'model.loras.style is "style.safetensors"; write settings in it: id, revision, weight_name.',
        ),
        (
            {"run_id": "../x"},
            'run_id is "../x"; write at most 100 letters, digits, dots, hyphens and underscores, the first a letter '
            "or digit.",
        ),
    ],
)
def test_wrong_value_is_told_with_what_to_write(settings: dict[str, object], told: str) -> None:
    assert _told(**settings) == told


@pytest.mark.parametrize(
    "given", ["x" * 10_000, "line\nbreak", '"quoted"', {"deep": ["x"] * 10_000}, ["x"] * 10_000]
)
def test_sentence_stays_one_short_line_whatever_was_written(given: object) -> None:
    told = _told(name=given)
    assert "\n" not in told
    assert len(told) < 200


def test_mistake_without_a_line_of_its_own_is_told_at_its_groups() -> None:
    with pytest.raises(BadInput, match=r"^f:3: model\.id is missing; write it\.$"):
        validate_job({**SMALLEST, "model": {}}, "f", {(): "f:1", ("model",): "f:3"})
