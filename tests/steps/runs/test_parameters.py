"""The text that web UIs read back."""

import time

import pytest

from imagekiln.steps.imaging.metadata import program_version
from imagekiln.steps.job.samplers import SAMPLERS as OURS
from imagekiln.steps.job.samplers import SCHEDULERS
from imagekiln.steps.models.lora_files import LoraFacts
from imagekiln.steps.runs.webui_text import ELLIPSIS, GUARD, ModelLabel, format_parameters
from tests.notes import NEGATIVE, parse
from tests.runs import image_row
from tests.texts import HOSTILE, chance

MODEL = ModelLabel("stabilityai/sdxl", "stabilityai/sdxl@462165984030d82259a11f4367a4eed129e94a7b")
SETTINGS = {
    "Steps": "2",
    "CFG scale": "3.0",
    "Seed": "7",
    "Size": "16x16",
    "Model hash": "4621659840",
}
MORE = (
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


def _lines(prompt: str) -> str:
    """A prompt as far as the text holds it: white space around lines is lost, and NUL is another sign."""
    return "\n".join(line.strip() for line in prompt.replace("\0", "\ufffd").strip().split("\n"))


def _read(
    prompt: str, negative: str = "", most: int | None = None
) -> tuple[tuple[str, str], dict[str, str]]:
    found = parse(
        format_parameters(image_row(prompt, 7, negative_prompt=negative).parameters, MODEL, most)
    )
    first, second = found.prompts
    return (first.replace(GUARD, ""), second.replace(GUARD, "")), found.settings


def test_the_text_is_as_web_uis_write_it() -> None:
    pixels = image_row(
        "a red circle", 7, negative_prompt="blue, ugly", sampler="dpmpp_2m_karras"
    ).parameters
    assert format_parameters(pixels, MODEL) == (
        "a red circle\nNegative prompt: blue, ugly\n"
        "Steps: 2, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 3.0, Seed: 7, Size: 16x16, "
        f"Model hash: 4621659840, Model: stabilityai/sdxl, Version: {program_version()}"
    )


def test_loras_stand_in_the_prompt_and_by_the_hash_of_their_tensors_in_the_settings() -> None:
    facts = {
        name: LoraFacts("ff" * 32, digit * 64)
        for name, digit in (("detail", "a"), ("style", "b"), ("x", "c"))
    }
    pixels = image_row(
        "a red circle", loras="detail:-0.5,style:1", negative_prompt="ugly"
    ).parameters
    said = format_parameters(pixels, ModelLabel("a", "a@b", facts))
    assert parse(said).prompts == ("a red circle <lora:detail:-0.5> <lora:style:1>", "ugly")
    assert parse(said).settings["Lora hashes"] == f"detail: {'a' * 12}, style: {'b' * 12}"
    assert 'Lora hashes: "detail: aaaaaaaaaaaa, style: bbbbbbbbbbbb", Version' in said
    alone = format_parameters(
        image_row("a", loras="style:1").parameters, ModelLabel("a", "a@b", facts)
    )
    assert 'Lora hashes: "style: bbbbbbbbbbbb"' in alone


def test_without_a_negative_prompt_there_is_no_line_of_it() -> None:
    assert format_parameters(image_row("a").parameters, MODEL).startswith("a\nSteps: 2, CFG scale")


@pytest.mark.parametrize("prompt", [*HOSTILE, *MORE])
def test_any_prompt_reads_back_as_itself_and_never_as_settings(prompt: str) -> None:
    wanted = _lines(prompt).replace(GUARD, "")
    for given, found in (
        ((prompt, ""), (wanted, "")),
        (("a", prompt), ("a", wanted)),
        ((prompt,) * 2, (wanted,) * 2),
    ):
        prompts, settings = _read(*given)
        assert prompts == found
        assert settings.items() >= SETTINGS.items()


def test_chance_prompts_read_back_as_themselves() -> None:
    random, pieces = (
        chance(7),
        [
            "\n",
            " ",
            ",",
            ":",
            '"',
            "\\",
            NEGATIVE,
            "Steps: 1",
            "Seed: 2, ",
            "a",
            "\t",
            "\r",
            "\x85",
        ],
    )
    for _ in range(500):
        first, second = ("".join(random.choices(pieces, k=random.randrange(12))) for _ in "ab")
        assert _read(f"a{first}b", f"a{second}b")[0] == (
            _lines(f"a{first}b"),
            _lines(f"a{second}b"),
        )


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert _read("a \ud83d b")[0] == ("a ? b", "")


def test_a_prompt_of_a_megabyte_is_told_at_once() -> None:
    for letter in ("x", " ", "\n", NEGATIVE, "\n " * 2):
        started = time.perf_counter()
        format_parameters(image_row(letter * (1_000_000 // len(letter))).parameters, MODEL)
        assert time.perf_counter() - started < 1


@pytest.mark.parametrize("letter", ["x", "\N{ROCKET}", "\u05d0"])
@pytest.mark.parametrize(
    ("prompt", "negative"), [(900, 0), (0, 900), (900, 900), (900, 20), (20, 900)]
)
def test_prompts_that_are_too_long_are_cut_and_the_settings_stay(
    letter: str, prompt: int, negative: int
) -> None:
    for most in (500, 501):
        whole = format_parameters(
            image_row(letter * prompt, 7, negative_prompt=letter * negative).parameters, MODEL, most
        )
        assert most - 20 <= len(whole.encode("utf-16-be")) // 2 <= most
        (first, second), settings = _read(letter * prompt, letter * negative, most)
        for given, found in ((letter * prompt, first), (letter * negative, second)):
            assert found == given or (
                found.endswith(ELLIPSIS) and given.startswith(found[:-1]) and len(found) > 40
            )
        assert settings.items() >= SETTINGS.items()


def test_a_prompt_that_fits_is_not_cut() -> None:
    whole = format_parameters(image_row("a" * 100).parameters, MODEL)
    assert format_parameters(image_row("a" * 100).parameters, MODEL, len(whole) + 20) == whole


def test_every_sampler_has_a_name_but_the_models_own() -> None:
    named = {name for name, spec in SCHEDULERS.items() if spec.webui_sampler}
    assert named == {*OURS} - {"default"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("/home/alice/secret/my model", "my model"),
        ("./x,y: z", "x,y: z"),
        ("bundled:shapes", "bundled:shapes"),
    ],
)
def test_of_a_local_model_only_the_last_name_is_told(name: str, told: str) -> None:
    settings = parse(
        format_parameters(image_row().parameters, ModelLabel(name, f"sha256:{'ab' * 32}"))
    ).settings
    assert (settings["Model"], settings["Model hash"]) == (told, "ababababab")
