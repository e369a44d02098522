"""The sentence for each mistake in a job."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job
from tests.smallest import SMALLEST

CLIP = {"kind": "clip_score", "id": "org/clip"}
CHECK = {"name": "a", "entry": "a:b"}
CAPTION = {"kind": "caption", "id": "org/captioner"}
REFINE = {"kind": "refine"}
UPSCALE = {"kind": "upscale", "id": "org/upscaler"}
JPEG = {"kind": "jpeg"}
KINDS = "it should be one of 'png', 'jpeg', 'webp'."
IP_ADAPTER = {"id": "m", "ip_adapter": {"id": "a", "weight_name": "a.safetensors"}}


def _message(**settings: object) -> str:
    with pytest.raises(BadInput) as caught:
        validate_job({**SMALLEST, **settings}, "job.yaml")
    return str(caught.value).removeprefix("job.yaml: ")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"model": {"id": "x", "dtype": "bf16"}},
            "model.dtype is \"bf16\"; it should be 'float32', 'bfloat16' or 'float16'.",
        ),
        (
            {"defaults": {"seed": -1}},
            "defaults.seed is -1; it should be greater than or equal to 0.",
        ),
        ({"carry": ["a", "a"]}, 'carry has two columns "a"; remove or rename one of them.'),
        ({"stpes": 5}, "stpes is not a setting; write defaults.steps."),
        ({"width": 512}, "width is not a setting; write defaults.width."),
        (
            {"defaults": {"gidance": 1}},
            "defaults.gidance is not a setting; write defaults.guidance.",
        ),
        ({"model": {"id": "x", "zzz": 1}}, "model.zzz is not a setting; remove it."),
        (
            {"prompts": {"template": "a", "wildcard": "c"}},
            "prompts.wildcard is not a setting; write prompts.wildcards.",
        ),
        ({"model": "org/name"}, 'model is "org/name"; it should be a group of settings.'),
        ({"name": "Big"}, 'name is "Big"; write at most 40 lower-case letters, digits and '),
        ({"prompts": [1]}, "prompts[0] is 1; it should be a valid string."),
        ({"shard": {"images": 1, "minutes": 1}}, "shard has both shard.images and shard.minutes; "),
        ({"skip_existing": None}, "skip_existing is null; it should be a valid boolean."),
        ({"encoding": {"kind": "gif"}}, f'encoding.kind is "gif"; {KINDS}'),
        ({"encoding": JPEG | {"quality": 0}}, "encoding.quality is 0; it should be greater than "),
        (
            {"encoding": JPEG | {"subsampling": 411}},
            "encoding.subsampling is 411; it should be 444, 422 or 420.",
        ),
        ({"encoding": JPEG | {"lossless": True}}, "here, it is of another kind: remove it, or "),
        (
            {"gates": {"low_contrast": {"below": 0.6}}},
            "gates.low_contrast.below is 0.6; it should be less than or equal to 0.5.",
        ),
        ({"gates": {"safety": {"below": 1}}}, "gates.safety.below is not a setting; "),
        (
            {"gates": {"low_contrats": {}}},
            "gates.low_contrats is not a setting; write gates.low_contrast.",
        ),
        ({"gates": {"checks": [{"name": "a"}]}}, "gates.checks[0].entry is missing; add it."),
        (
            {"gates": {"checks": [CHECK | {"entry": "a.b"}]}},
            'gates.checks[0].entry is "a.b"; write the function, as package.module:function.',
        ),
        (
            {"gates": {"checks": [CHECK | {"entry": "os.path:join"}]}},
            'gates.checks[0].entry is "os.path:join", which belongs to Python; name a function',
        ),
        (
            {"gates": {"checks": [CHECK | {"name": "blank"}]}},
            'gates.checks[0].name is "blank", the name of a built-in gate',
        ),
        ({"gates": {"checks": [CHECK] * 2}}, 'gates.checks has two checks "a"; remove or rename '),
        ({"keep": "best 1 of 4 by clip"}, 'has keep by "clip", and the scores are none; name one'),
        ({"scores": {"a": CLIP}, "keep": "the best"}, "write it as: best 1 of 4"),
        ({"scores": {"a": CLIP}, "keep": "best 1 of 99 by a"}, "be less than or equal to 16"),
        ({"scores": {"ok": CLIP}}, "scores.ok, the name of a column, gate or status"),
        ({"scores": {"near_duplicate_of": CLIP}}, "scores.near_duplicate_of, the name of a column"),
        ({"scores": {"a": {"id": "org/clip"}}}, "scores.a.kind is missing; add it."),
        ({"scores": {"a": CLIP | {"mni": 1}}}, "is not a setting; write scores.a.min."),
        ({"scores": {"a": CLIP | {"min": 2, "max": 1}}}, "has min 2 and max 1; exchange them"),
        ({"scores": {"a": {"kind": "own", "entry": "os:system"}}}, "belongs to Python"),
        (
            {"passes": {"a": {"kind": "blur"}}},
            "passes.a.kind is \"blur\"; it should be one of 'upscale', 'caption', 'refine'",
        ),
        ({"passes": {"../x": REFINE}}, "passes"),
        ({"passes": {"x": REFINE | {"strength": 0}}}, "passes.x.strength is 0"),
        ({"passes": {"x": REFINE | {"steps": 3, "strength": 0.3}}}, "leaves nothing to draw; "),
        ({"passes": {"x": UPSCALE | {"id": "s3://key:secret@bucket"}}}, "contains credentials"),
        ({"passes": {"x": UPSCALE | {"trust_remote_code": True}}}, "is not a setting"),
        ({"passes": {"blank": REFINE}}, "passes.blank, the name of a column, score, gate or "),
        ({"passes": {"words": CAPTION, "x": REFINE}}, "passes.x after the caption words"),
        ({"passes": {f"x{number}": REFINE for number in range(9)}}, "at most 8 items"),
        ({"passes": {"x": REFINE | {"model": {}}}}, "passes.x.model.id is missing; add it."),
        ({"passes": {"x": REFINE | {"model": {"id": "a", "loras": {}}}}}, "is not a setting"),
        (
            {"passes": {"x": REFINE}, "model": IP_ADAPTER},
            "refine, which does not work with model.controlnet or model.ip_adapter",
        ),
    ],
)
def test_mistake_is_one_sentence_with_its_setting(
    settings: dict[str, object], sentence: str
) -> None:
    message = _message(**settings)
    assert sentence in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "line\nbreak", '"quoted"', {"deep": ["x"] * 10_000}, ["x"] * 10_000]
)
def test_sentence_stays_one_short_line_whatever_was_written(value: object) -> None:
    message = _message(name=value)
    assert "\n" not in message
    assert len(message) < 200


def test_missing_settings_are_reported_at_their_groups() -> None:
    with pytest.raises(BadInput) as caught:
        validate_job(
            {"name": "a", "model": {}, "prompts": "p"}, "f", {(): "f:1", ("model",): "f:3"}
        )
    assert str(caught.value).splitlines() == [
        "f:1: output is missing; add it.",
        "f:3: model.id is missing; add it.",
    ]
