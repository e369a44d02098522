"""The models of passes: what planning refuses and freezes, and what they do to image ids."""

import json
import shutil
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.models.passes import PassFacts, PassSizes, pass_references
from imagekiln.steps.models.resolve import ResolvedModel, resolve_model
from imagekiln.steps.models.transformers_models import fetch_planned_files
from tests.image_models import FACTOR, captioner_folder, upscaler_folder
from tests.runs import job

REFINE = {"kind": "refine", "strength": 0.5}


def upscale(**more: object) -> dict[str, object]:
    """A pass that enlarges."""
    return {"kind": "upscale", "id": str(upscaler_folder()), **more}


def caption(**more: object) -> dict[str, object]:
    """A pass that describes."""
    return {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8, **more}


def resolved(**passes: object) -> ResolvedModel:
    """The models of a job with these passes."""
    return resolve_model(job(Path("prompts.parquet"), "out", passes=passes))


def changed(source: Path, target: Path, **config: object) -> str:
    """A copy of a model with other values in its config.json."""
    shutil.copytree(source, target)
    path = target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return str(target)


def test_the_files_of_each_pass_are_frozen(tmp_path: Path) -> None:
    copy = changed(captioner_folder(), tmp_path / "copy")
    model = resolved(big=upscale(), detail=REFINE, words=caption(id=copy))
    assert [*model.passes] == ["big", "words"]
    assert (model.passes["big"].scale, model.passes["words"].scale) == (FACTOR, 1)
    [_, (setting, reference)] = pass_references(model.job)
    digest = model.passes["words"].digest
    assert fetch_planned_files(setting, reference, digest) == Path(copy)
    weights = Path(copy) / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(BadInput, match=r"passes\.words: .* is not what the run was planned with"):
        fetch_planned_files(setting, reference, digest)


def test_every_setting_of_a_pass_but_its_name_changes_ids(tmp_path: Path) -> None:
    other = changed(upscaler_folder(), tmp_path / "other", hidden_act="relu")
    variants: list[dict[str, object]] = [
        {},
        {"a": upscale()},
        {"a": upscale(id=other)},
        {"a": REFINE},
        {"a": REFINE | {"strength": 0.4}},
        {"a": REFINE | {"steps": 8}},
        {"a": REFINE | {"guidance": 2.0}},
        {"a": REFINE | {"scale": 2}},
        {"a": caption()},
        {"a": caption(max_tokens=9)},
        {"a": upscale(), "b": REFINE},
        {"b": REFINE, "a": upscale()},
    ]
    keys = {resolved(**passes).key_extras for passes in variants}
    assert len(keys) == len(variants)
    assert resolved(a=upscale(), b=REFINE).key_extras == resolved(x=upscale(), y=REFINE).key_extras
    whole, float_ = (resolved(a=REFINE | {"scale": scale}) for scale in (2, 2.0))
    assert whole.key_extras == float_.key_extras


@pytest.mark.parametrize(
    ("kind", "source", "config", "sentence"),
    [
        ("upscale", upscaler_folder, {"model_type": "clip"}, r"upscale needs swin2sr"),
        ("upscale", upscaler_folder, {"auto_map": {"AutoModel": "x.Y"}}, r"code of its own"),
        ("caption", captioner_folder, {"model_type": "clip"}, r"caption needs blip or git"),
    ],
)
def test_a_model_that_does_not_fit_its_pass_is_refused(
    kind: str, source: object, config: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    folder = changed(source(), tmp_path / "model", **config)  # type: ignore[operator]  # a function
    settings = {"kind": kind, "id": folder}
    with pytest.raises(BadInput, match=rf"passes\.x.*{sentence}") as error:
        resolved(x=settings)
    assert "\n" not in str(error.value)


def test_pickles_and_missing_folders_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "pickled"
    shutil.copytree(upscaler_folder(), target)
    (target / "model.safetensors").rename(target / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"passes\.x: .* has no .*safetensors, and pickles"):
        resolved(x=upscale(id=str(target)))
    with pytest.raises(KilnError, match=r"passes\.x: ./nowhere is not a folder"):
        resolved(x=upscale(id="./nowhere"))


def test_sizes_follow_each_pass() -> None:
    passes = {
        "big": upscale(),
        "half": REFINE | {"scale": 0.3},
        "larger": REFINE | {"scale": 2},
        "words": caption(),
    }
    parsed = job(Path("prompts.parquet"), "out", passes=passes)
    facts = {"big": PassFacts("", 4), "words": PassFacts("")}
    sizes = PassSizes.of(parsed, facts, 8)
    assert sizes.sizes_by_pass((16, 24)) == [(64, 96), (16, 32), (32, 64), (32, 64)]
    assert sizes.final((16, 24)) == (32, 64)
    assert sizes.work((16, 24), 10) == 10 * 0.5 * (16 * 32 + 32 * 64)
    tiny = PassSizes.of(job(Path("p"), "out", passes={"x": REFINE | {"scale": 0.125}}), {}, 8)
    assert tiny.final((16, 512)) == (8, 64)
