"""Where a job sets no steps or guidance, images are drawn with the model's own."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.local import run
from imagekiln.steps.models.component_files import Config
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.own_settings import OwnSettings, read_own_settings
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.rules import rejection_rules
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import families, jobs, models, own_settings, pipeline_calls, runs, safetensors
from tests.faults import manifests
from tests.own_settings import KNOWN, TURBO_SCHEDULER

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]
SDXL = "StableDiffusionXLPipeline"


def _own(
    folder: Path,
    name: str,
    index: Config,
    denoiser: Config | None = None,
    scheduler: Config | None = None,
) -> OwnSettings:
    if scheduler is not None:
        (folder / "scheduler").mkdir(exist_ok=True)
        (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    return read_own_settings(ModelSettings(id=name), folder, index, denoiser or {})


def _numbers(own: OwnSettings) -> tuple[int | None, float | None]:
    return own.steps, own.guidance


@pytest.mark.parametrize("name", KNOWN)
def test_a_well_known_model_is_drawn_as_its_authors_say_where_nothing_is_set(
    name: str, tmp_path: Path
) -> None:
    known = KNOWN[name]
    side = families.SIDES.get(known.folder().name, 32)
    job = runs.job(
        runs.write_prompts(tmp_path / "prompts.parquet", [{"prompt": "a red circle"}]),
        str(tmp_path / "out"),
        model={"id": str(own_settings.write(name, tmp_path)), "dtype": "float32"},
        defaults={"width": side, "height": side},
    )
    done = run(job, NoProgress(), Stop())
    assert done.summary.ok == 1
    image = manifests(done.uri)[0]
    assert (image["steps"], image["guidance"]) == (known.steps, known.guidance)
    assert known.source in estimate(job).defaults


def test_the_table_of_calls_is_that_of_the_installed_diffusers() -> None:
    assert pipeline_calls.FILE.read_text() == pipeline_calls.pipeline_calls()


def test_a_model_made_from_a_well_known_one_is_drawn_like_it(tmp_path: Path) -> None:
    index: Config = {
        "_class_name": "StableDiffusion3Pipeline",
        "_name_or_path": "stabilityai/stable-diffusion-3.5-medium",
    }
    own = _own(tmp_path, "mine", index)
    assert _numbers(own) == (40, 4.5)
    assert "stable-diffusion-3.5-medium, which it was made from" in own.source


@pytest.mark.parametrize(
    ("pipeline", "denoiser", "scheduler", "numbers"),
    [
        (SDXL, {}, TURBO_SCHEDULER, (None, 5.0)),  # of Turbo, Lightning, or a whole model
        (SDXL, {}, TURBO_SCHEDULER | {"timestep_spacing": "leading"}, (50, 5.0)),
        (SDXL, {}, TURBO_SCHEDULER | {"rescale_betas_zero_snr": True}, (50, 5.0)),
        (SDXL, {}, {"_class_name": "LCMScheduler"}, (4, 1.0)),
        (SDXL, {"time_cond_proj_dim": 256}, {"_class_name": "LCMScheduler"}, (4, 8.0)),
        (SDXL, {}, {"_class_name": "TCDScheduler"}, (4, 0.0)),
        ("FluxPipeline", {"guidance_embeds": False}, {}, (4, None)),
        ("HunyuanImagePipeline", {"guidance_embeds": True}, {}, (8, 3.25)),
        ("HunyuanImagePipeline", {"guidance_embeds": False}, {}, (50, 3.5)),
    ],
)
def test_the_files_of_a_model_say_that_it_is_distilled(
    pipeline: str,
    denoiser: Config,
    scheduler: Config,
    numbers: tuple[int, float | None],
    tmp_path: Path,
) -> None:
    own = _own(tmp_path, "mine", {"_class_name": pipeline}, denoiser, scheduler)
    assert _numbers(own) == numbers


@pytest.mark.parametrize(
    ("name", "pipeline"), [("night-lightning", SDXL), ("mine", "PipelineOfTomorrow")]
)
def test_steps_that_nothing_says_are_asked_for(name: str, pipeline: str, tmp_path: Path) -> None:
    folder = own_settings.write(name, tmp_path, own_settings.Known(_sdxl, 0, None, ""))
    own_settings.change(folder / "model_index.json", _class_name=pipeline)
    model = {"id": str(folder), "dtype": "float32"}
    columns = {"prompt": ["a"]}
    with pytest.raises(BadInput, match=r"Set defaults\.steps and defaults\.guidance"):
        jobs.plan(tmp_path, columns, model=model)
    assert jobs.plan(tmp_path, columns, model=model, defaults={"steps": 6}).plan.counts.images == 1


def _sdxl() -> Path:
    return models.folder("sdxl")


@pytest.mark.parametrize(
    ("pipeline", "guidance", "guided"),
    [
        ("Krea2Pipeline", 1.0, True),  # its 1 is a guidance of 2 elsewhere
        ("Krea2Pipeline", 0.0, False),
        ("GlmImagePipeline", 1.5, True),
        ("FluxKontextPipeline", 3.5, False),  # a number that the model reads
        ("Ideogram4Pipeline", None, True),
        (SDXL, 1.0, False),
        (SDXL, 5.0, True),
    ],
)
def test_what_runs_twice_a_step_is_known(
    pipeline: str, guidance: float | None, guided: bool, tmp_path: Path
) -> None:
    own = _own(tmp_path, "mine", {"_class_name": pipeline}, {"guidance_embeds": True})
    assert own.call.is_guided(guidance) is guided


def test_a_distilled_unet_reads_its_guidance_and_no_negative_prompt(tmp_path: Path) -> None:
    own = _own(tmp_path, "mine", {"_class_name": SDXL}, {"time_cond_proj_dim": 256})
    assert own.reads_guidance
    assert not own.call.takes_negative_prompt
    assert not own.call.is_guided(8.0)


def _refused(tmp_path: Path, name: str, columns: jobs.Columns, **defaults: object) -> str:
    model = {"id": str(own_settings.write(name, tmp_path)), "dtype": "float32"}
    with pytest.raises(BadInput) as refused:
        jobs.plan(tmp_path, columns, model=model, defaults=defaults)
    return str(refused.value)


def test_a_guidance_that_the_model_does_not_read_is_refused(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b"], "guidance": [3.5, 7.0]}
    message = _refused(tmp_path / "rows", "FLUX.1-schnell", columns)
    assert "2 of 2 rows were rejected" in message
    assert "columns: {guidance: null}" in message
    message = _refused(tmp_path / "job", "FLUX.2-klein-4B", {"prompt": ["a"]}, guidance=4)
    assert "guidance has no effect: the model does not read it; remove it from the job" in message


@pytest.mark.parametrize("name", ["FLUX.1-dev", "sdxl-turbo", "FLUX.2-klein-4B"])
def test_a_negative_prompt_without_effect_is_refused_in_one_sentence(
    name: str, tmp_path: Path
) -> None:
    columns = {"prompt": ["a"] * 50, "negative_prompt": ["blurry"] * 49 + [""]}
    message = _refused(tmp_path, name, columns)
    assert "49 of 50 rows were rejected" in message
    assert message.count("negative_prompt: null") == 1


def test_a_pass_with_a_model_of_its_own_draws_with_that_models_settings(tmp_path: Path) -> None:
    refiner = own_settings.write("stable-diffusion-v1-5", tmp_path)
    settings = {"kind": "refine", "model": {"id": str(refiner), "dtype": "float32"}}
    planned = jobs.plan(tmp_path, {"prompt": ["a"], "steps": [3]}, passes={"polish": settings})
    polish = planned.plan.job.passes["polish"].model_dump()
    assert (polish["steps"], polish["guidance"]) == (50, 7.5)


def test_a_lora_for_few_steps_needs_numbers(tmp_path: Path) -> None:
    lora = {"id": str(safetensors.write(tmp_path / "sdxl_lightning_4step_lora.safetensors"))}
    model = {**jobs.SHAPES, "loras": {"fast": lora}}
    columns = {"prompt": ["a"]}
    with pytest.raises(BadInput, match=r"model\.loras\.fast: is called as LoRAs for few steps are"):
        jobs.plan(tmp_path, columns, model=model)
    numbers = {"steps": 4, "guidance": 0}
    assert jobs.plan(tmp_path, columns, model=model, defaults=numbers).plan.counts.images == 1


def test_a_schedule_of_guidance_is_for_its_own_number_of_steps(tmp_path: Path) -> None:
    own = _own(tmp_path, "mine", {"_class_name": "Ideogram4Pipeline"})
    assert (_numbers(own), own.call.schedule_steps) == ((48, None), 48)
    facts = ModelFacts("digest", "Ideogram4Pipeline", 64, 64, 8, own)
    rules = rejection_rules(jobs.job(tmp_path), facts)
    assert ("steps", "guidance IS NULL AND steps <> 48") in {
        (rule.column, rule.condition) for rule in rules
    }


def test_the_same_settings_by_the_job_and_by_the_model_give_the_same_images(
    tmp_path: Path,
) -> None:
    columns = {"prompt": ["a red circle"], "guidance": pa.array([None], pa.float64())}
    defaults = [{}, {"steps": 10, "guidance": 3.0}, {"steps": 11}]
    own, by_job, other = (
        jobs.image_rows(jobs.plan(tmp_path / str(place), columns, defaults=each))["image_id"]
        for place, each in enumerate(defaults)
    )
    assert own == by_job
    assert own != other
