"""The text that web UIs read back."""

import re
from dataclasses import replace

import pytest

from imagekiln.steps.imaging.metadata import program_version
from imagekiln.steps.job.passes import AnyPass, CaptionPass, RefinePass, UpscalePass
from imagekiln.steps.models.loras import LoraFacts
from imagekiln.steps.models.passes import PassFacts, PassSizes
from imagekiln.steps.runs.webui_text import ELLIPSIS, GUARD, ModelLabel, format_parameters
from tests.notes import parse
from tests.runs import image_row
from tests.texts import HOSTILE

MODEL = ModelLabel("stabilityai/sdxl", "stabilityai/sdxl@462165984030d82259a11f4367a4eed129e94a7b")
SETTINGS = {
    "Steps": "2",
    "CFG scale": "3.0",
    "Seed": "7",
    "Size": "16x16",
    "Model hash": "4621659840",
}
# Prompts that look like what the text puts around them.
LOOKALIKES = (
    "Steps: 1, Sampler: x, Seed: 9, Size: 1x1",
    "a castle\nSteps: 1, Sampler: x, Seed: 9, Size: 1x1",
    "a castle\nNegative prompt: ugly\nSteps: 1, Sampler: x, Seed: 9",
    "Negative prompt: ugly",
    "  Negative prompt: ugly\n\tNegative prompt: uglier\n\nNegative prompt:",
    'commas, colons: and "quotes", \\" \\n, "Steps: 1',
    "<lora:x:1> (emphasis:1.2) [a|b]",
    "one\n\n\nfour lines",
    "no end\\",
)


def _as_read_back(prompt: str) -> str:
    """A prompt as the text preserves it: no white space around lines, and NUL replaced."""
    return "\n".join(line.strip() for line in prompt.replace("\0", "\ufffd").strip().split("\n"))


def _read(
    prompt: str, negative_prompt: str = "", max_length: int | None = None
) -> tuple[tuple[str, str], dict[str, str]]:
    """Both prompts and the settings, as a web UI reads them from the text of an image."""
    row = image_row(prompt, 7, negative_prompt=negative_prompt)
    text = parse(format_parameters(row.parameters, MODEL, max_length))
    first, second = text.prompts
    return (first.replace(GUARD, ""), second.replace(GUARD, "")), text.settings


def test_the_text_is_as_web_uis_write_it() -> None:
    row = image_row("a red circle", 7, negative_prompt="blue, ugly", sampler="dpmpp_2m_karras")
    assert format_parameters(row.parameters, MODEL) == (
        "a red circle\nNegative prompt: blue, ugly\n"
        "Steps: 2, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 3.0, Seed: 7, Size: 16x16, "
        f"Model hash: 4621659840, Model: stabilityai/sdxl, Version: {program_version()}"
    )


def test_loras_stand_in_the_prompt_and_by_the_hash_of_their_tensors_in_the_settings() -> None:
    hashes = {"detail": "a" * 64, "style": "b" * 64, "x": "c" * 64}
    facts = {name: LoraFacts("ff" * 32, tensors) for name, tensors in hashes.items()}
    model = ModelLabel("a", "a@b", facts)
    two = image_row("a red circle", loras="detail:-0.5,style:1", negative_prompt="ugly")
    text = format_parameters(two.parameters, model)
    assert parse(text).prompts == ("a red circle <lora:detail:-0.5> <lora:style:1>", "ugly")
    assert parse(text).settings["Lora hashes"] == f"detail: {'a' * 12}, style: {'b' * 12}"
    assert 'Lora hashes: "detail: aaaaaaaaaaaa, style: bbbbbbbbbbbb", Version' in text
    one = image_row("a", loras="style:1")
    assert 'Lora hashes: "style: bbbbbbbbbbbb"' in format_parameters(one.parameters, model)


UPSCALE = UpscalePass(id="org/doubles", revision="a" * 40)
REFINE = RefinePass(strength=0.4, scale=1.5)
FACTS = PassFacts(f"org/doubles@{'a' * 40}", 2)


@pytest.mark.parametrize(
    ("passes", "known"),
    [
        (
            {"big": UPSCALE, "detail": REFINE},
            "Denoising strength: 0.4, Hires upscale: 3, Hires steps: 2, "
            "Hires upscaler: org/doubles, "
            "Passes: big (upscale org/doubles); detail (refine), "
            "Final size: 48x48",
        ),
        (
            {"detail": RefinePass(strength=0.4, steps=9, scale=2)},
            "Denoising strength: 0.4, Hires upscale: 2, Hires steps: 9, "
            "Hires upscaler: Lanczos, Passes: detail (refine), Final size: 32x32",
        ),
        (
            {"big": UPSCALE, "words": CaptionPass(id="org/words", revision="b" * 40)},
            "Postprocess upscale by: 2, Postprocess upscaler: org/doubles, "
            "Passes: big (upscale org/doubles), Final size: 32x32",
        ),
    ],
    ids=["both", "refine", "upscale"],
)
def test_passes_and_the_final_size_stand_in_the_settings(
    passes: dict[str, AnyPass], known: str
) -> None:
    model = replace(MODEL, passes=PassSizes(passes, {"big": FACTS}, 8))
    settings = parse(format_parameters(image_row("a", 7).parameters, model)).settings
    assert settings == SETTINGS | parse(f"a\n{known}").settings | {
        "Model": MODEL.name,
        "Version": program_version(),
    }


@pytest.mark.parametrize("prompt", [*HOSTILE, *LOOKALIKES])
def test_any_prompt_reads_back_as_itself_and_never_as_settings(prompt: str) -> None:
    text = _as_read_back(prompt).replace(GUARD, "")
    for written, expected in (
        ((prompt, ""), (text, "")),
        (("a", prompt), ("a", text)),
        ((prompt, prompt), (text, text)),
    ):
        prompts, settings = _read(*written)
        assert prompts == expected
        assert settings.items() >= SETTINGS.items()


@pytest.mark.parametrize("tag", ["<lora:style:0.8>", "<hypernet:a b:1>", "<lyco:x>"])
def test_tag_in_a_prompt_is_not_read_back_as_what_was_used(tag: str) -> None:
    row = image_row(f"a cat {tag}", 7, negative_prompt=f"{tag} blurry")
    text = format_parameters(row.parameters, MODEL)
    assert not re.search(r"<(\w+):([^>]+)>", text)  # by which web UIs find them
    assert text.replace(GUARD, "").count(tag) == 2


@pytest.mark.parametrize("letter", ["x", "\N{ROCKET}", "\u05d0"])
def test_prompts_that_are_too_long_are_cut_and_the_settings_stay(letter: str) -> None:
    long = letter * 900
    row = image_row(long, 7, negative_prompt=long)
    for max_length in (500, 501):
        text = format_parameters(row.parameters, MODEL, max_length)
        assert max_length - 20 <= len(text.encode("utf-16-be")) // 2 <= max_length
        prompts, settings = _read(long, long, max_length)
        for cut in prompts:
            assert long.startswith(cut[:-1])
            assert cut.endswith(ELLIPSIS)
        assert settings.items() >= SETTINGS.items()


@pytest.mark.parametrize(
    ("model_id", "name"),
    [
        ("/home/alice/secret/my model", "my model"),
        ("./x,y: z", "x,y: z"),
        ("bundled:shapes", "bundled:shapes"),
    ],
)
def test_of_a_local_model_only_the_last_name_is_written(model_id: str, name: str) -> None:
    model = ModelLabel(model_id, f"sha256:{'ab' * 32}")
    settings = parse(format_parameters(image_row().parameters, model)).settings
    assert (settings["Model"], settings["Model hash"]) == (name, "ababababab")
