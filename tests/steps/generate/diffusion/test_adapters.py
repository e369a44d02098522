"""ControlNets and IP-Adapters: whole jobs, slots of a batch, and what is refused."""

import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.imaging.input_images import open_input_image
from imagekiln.steps.local import run
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.image import ImageRow, image_rows
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.storage import open_store
from tests import adapters, families, models
from tests.adapters import Controlled, Kind
from tests.drawing import bytes_of, pixels_of
from tests.faults import manifests
from tests.pictures import half, noise
from tests.runs import job, planned, write_prompts

pytestmark = [
    pytest.mark.filterwarnings(each) for each in (models.DIFFUSERS_WARNS, models.FLUX_WARNS)
]

KINDS: list[Kind] = ["sd", "sdxl"]
TRANSFORMERS: Mapping[Controlled, Callable[[], Path]] = {
    "flux": adapters.flux_ip_adapter,
    "sd3": adapters.sd3_ip_adapter,
}
PROMPTS = ["a red circle", "a blue square on yellow", "two green triangles", "a star"]
PLAIN: dict[str, object] = {
    "width": models.SIDE,
    "height": models.SIDE,
    "strength": None,
    "source_image": None,
    "mask_image": None,
    "control_image": None,
    "reference_images": None,
}


def _model(kind: Controlled, pictures: Container[str] = ()) -> dict[str, object]:
    if kind in TRANSFORMERS and "reference_images" in pictures:
        adapter = {"id": str(TRANSFORMERS[kind]()), "weight_name": "adapter.safetensors"}
        return {"id": str(models.folder(kind)), "dtype": "float32", "ip_adapter": adapter}
    controlled: dict[str, object] = {
        "id": str(adapters.model(kind)),
        "dtype": "float32",
        "controlnet": {"id": str(adapters.controlnet(kind)), "scale": 0.7},
    }
    if kind not in ("sd", "sdxl"):
        return controlled
    return controlled | {
        "ip_adapter": {
            "id": str(adapters.ip_adapter(kind)),
            "weight_name": "adapter.safetensors",
            "scale": 0.8,
        }
    }


def _rows(**pictures: object) -> list[dict[str, object]]:
    """Four rows with pictures of these columns, another picture for each row, but for masks."""
    strength = 0.5 if "source_image" in pictures else None
    return [
        {
            **PLAIN,
            "strength": strength,
            "prompt": prompt,
            **{name: half() if name == "mask_image" else noise(place) for name in pictures},
        }
        for place, prompt in enumerate(PROMPTS)
    ]


ALL: list[dict[str, bool]] = [
    {"control_image": True},
    {"control_image": True, "source_image": True},
    {"control_image": True, "source_image": True, "mask_image": True},
    {"reference_images": True},
    {"reference_images": True, "source_image": True},
    {"reference_images": True, "control_image": True, "source_image": True, "mask_image": True},
]
CASES: list[tuple[Controlled, dict[str, bool]]] = [
    *((kind, pictures) for kind in KINDS for pictures in ALL),
    *(("flux", pictures) for pictures in ALL[:3]),
    ("sd3", ALL[0]),
    *((kind, pictures) for kind in TRANSFORMERS for pictures in ALL[3:5]),
]


def _opened(
    folder: Path, kind: Controlled, rows: list[dict[str, object]]
) -> tuple[Denoiser, list[ImageRow]]:
    return _with(folder, _model(kind, [name for name, value in rows[0].items() if value]), rows)


def _with(
    folder: Path, model: dict[str, object], rows: list[dict[str, object]]
) -> tuple[Denoiser, list[ImageRow]]:
    there = planned(folder, str(folder / "out"), rows, model=model)
    store = open_store(there.uri)
    return LazyDenoiser(store, there.plan)(), image_rows(read_shard_rows(store, there.plan, 0))


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("kind", "pictures"), CASES, ids=lambda each: each if isinstance(each, str) else "+".join(each)
)
def test_an_image_has_the_same_bytes_in_every_slot_and_follows_its_own_pictures(
    tmp_path: Path, kind: Controlled, pictures: dict[str, bool]
) -> None:
    denoiser, rows = _opened(tmp_path, kind, _rows(**pictures))
    wide = [_changed(row, width=2 * models.SIDE) for row in rows]
    for size, each in ((2, rows), (4, wide)):
        whole = bytes_of(denoiser, each[:size], size)
        assert whole == bytes_of(denoiser, each[:size][::-1], size)[::-1]
        assert whole[1:2] == bytes_of(denoiser, each[1:2], size)
    for name in {*pictures} - {"mask_image"}:
        other = _changed(rows[0], **{name: getattr(rows[3].parameters, name)})
        assert bytes_of(denoiser, [other], 4) != bytes_of(denoiser, rows[:1], 4)


def _changed(row: ImageRow, **changes: object) -> ImageRow:
    return replace(row, parameters=replace(row.parameters, **changes))  # type: ignore[arg-type]  # the caller's names


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_pictures_is_drawn_as_by_the_model_alone(
    tmp_path: Path, kind: Kind
) -> None:
    rows = [*_rows(reference_images=True, control_image=True)[:1], {**PLAIN, "prompt": "a square"}]
    denoiser, found = _opened(tmp_path, kind, rows)
    plain = [row for row in found if row.parameters.reference_images is None]
    drawn = (
        bytes_of(denoiser, [row for row in found if row not in plain], 4),
        bytes_of(denoiser, plain, 4),
    )
    (alone,) = Denoiser(models.pipe(kind)).draw(plain, 4, lambda: None)
    assert alone.rgb is not None
    assert drawn[1] == [alone.rgb.tobytes()]


def test_an_ip_adapter_draws_what_it_draws_in_diffusers(tmp_path: Path) -> None:
    denoiser, rows = _opened(tmp_path, "sd", _rows(reference_images=True)[:1])
    pipe = models.pipe("sd")
    folder = str(adapters.ip_adapter("sd"))
    pipe.load_ip_adapter(
        folder,
        subfolder="",
        weight_name="adapter.safetensors",
        image_encoder_folder="image_encoder",
    )
    assert bytes_of(denoiser, rows, 1) == [
        adapters.drawn_by_diffusers(pipe, PROMPTS[0], rows[0], guidance=3.0)
    ]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("flux", {}),
        ("flux", {"num_layers": 2, "num_single_layers": 0, "guidance_embeds": True}),
        ("flux-of-8", {"conditioning_embedding_channels": 4, "patch_size": 2}),  # as XLabs' are
        ("sd3", {}),
        ("sd3", {"force_zeros_for_pooled_projection": False}),
        (
            "sd3",  # as SD3.5's own
            {
                "joint_attention_dim": None,
                "use_pos_embed": False,
                "force_zeros_for_pooled_projection": False,
            },
        ),
    ],
    ids=["flux", "flux-guided", "flux-hint", "sd3", "sd3-pooled", "sd3.5"],
)
def test_a_controlnet_draws_what_it_draws_in_diffusers(
    tmp_path: Path, model: adapters.Model, more: dict[str, object]
) -> None:
    import diffusers
    import torch

    folder, network = (
        adapters.model(model),
        adapters.new_controlnet("sd3" if model == "sd3" else "flux", **more),
    )
    negative = "grey" if model == "sd3" else None
    row = {**_rows(control_image=True)[0], "width": 48, "height": 32, "negative_prompt": negative}
    asked = {"id": str(folder), "dtype": "float32"}
    control = {"id": str(adapters.saved_controlnet(network)), "scale": 0.7}
    denoiser, rows = _with(tmp_path, asked | {"controlnet": control}, [row])
    pipe = diffusers.AutoPipelineForText2Image.from_pipe(
        diffusers.DiffusionPipeline.from_pretrained(folder), controlnet=network
    )
    generator = torch.Generator("cpu").manual_seed(rows[0].parameters.seed)
    factor, wide = pipe.vae_scale_factor, pipe.vae.config.latent_channels
    latents = torch.randn((1, wide, 32 // factor, 48 // factor), generator=generator)
    if model != "sd3":
        latents = pipe._pack_latents(latents, *latents.shape)
    with torch.random.fork_rng():
        torch.set_rng_state(
            generator.get_state()
        )  # StableDiffusion3ControlNetPipeline encodes by it
        (theirs,) = pipe(
            PROMPTS[0],
            negative_prompt=negative,
            control_image=ImageOps.fit(
                open_input_image(noise(0)), (48, 32), Pillow.Resampling.LANCZOS
            ),
            controlnet_conditioning_scale=0.7,
            width=48,
            height=32,
            num_inference_steps=2,
            guidance_scale=3.0,
            generator=generator,
            latents=latents,
        ).images
    # A padded chunk may round otherwise than the single image that diffusers decodes.
    (ours,) = pixels_of(denoiser, rows, 1)
    assert np.abs(ours.astype(int) - np.asarray(theirs)).max() <= 1


@pytest.mark.parametrize("kind", ["sd", pytest.param("sdxl", marks=pytest.mark.slow)])
def test_a_job_with_both_runs_is_verified_and_reproduced(tmp_path: Path, kind: Kind) -> None:
    rows = [
        *_rows(control_image=True)[:2],
        *_rows(reference_images=True)[2:],
        {**PLAIN, "prompt": "a square"},
    ]
    done = run(
        job(write_prompts(tmp_path / "p.parquet", rows), str(tmp_path / "out"), model=_model(kind))
    )
    assert (done.summary.images, done.summary.ok) == (5, 5)
    assert verify(done.uri).ok == 5
    for row in manifests(done.uri)[::2]:
        assert reproduce(done.uri, row["image_id"], tmp_path / "again.png").equal == "bytes"


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"controlnet": {"id": "there/is/none"}},
            "model.controlnet: there/is/none is not a folder.",
        ),
        (
            {"id": "{lcm}", "controlnet": {"id": "{control}"}},
            "model.controlnet: Imagekiln does not support it for LatentConsistencyModelPipeline",
        ),
        (
            {"id": "{flux}", "controlnet": {"id": "{control}"}},
            "model.controlnet: .* is a ControlNetModel, not a FluxControlNetModel. Choose another",
        ),
        (
            {"controlnet": {"id": "{wide}"}},
            "model.controlnet: .* has cross_attention_dim of 64, but the model has 32. Choose",
        ),
    ],
)
def test_a_network_that_is_none_is_refused_at_planning(
    tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    known = {
        "{flux}": models.folder("flux"),
        "{lcm}": families.folder("lcm"),
        "{control}": adapters.controlnet("sd"),
        "{wide}": adapters.controlnet("sdxl"),
    }

    def filled(value: object) -> object:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return str(known[value]) if value in known else value

    model = {"id": str(models.folder("sd")), "dtype": "float32", **changes}
    with pytest.raises((BadInput, Missing), match=told):
        planned(tmp_path, str(tmp_path / "out"), _rows(control_image=True), model=filled(model))


def test_a_network_that_was_changed_is_not_drawn_with(tmp_path: Path) -> None:
    copy = tmp_path / "control"
    shutil.copytree(adapters.controlnet("sd"), copy)
    model = {"id": str(models.folder("sd")), "dtype": "float32", "controlnet": {"id": str(copy)}}
    there = planned(tmp_path, str(tmp_path / "out"), _rows(control_image=True), model=model)
    shutil.copytree(adapters.controlnet("sdxl"), copy, dirs_exist_ok=True)
    with pytest.raises(BadInput, match="is not what the run was planned with"):
        LazyDenoiser(open_store(there.uri), there.plan)()
