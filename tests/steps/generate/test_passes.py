"""Passes over drawn images: neighbors, order, memory, and what becomes of an image that fails."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.image_models import load_captioner
from imagekiln.steps.generate.passes import ImagePass, ImagePasses, load_passes, pass_seed
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.imaging.input_images import resize_to_cover
from imagekiln.steps.job.passes import CaptionPass
from imagekiln.steps.models.component_files import weights_digest
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.storage import open_store
from tests.image_models import CaptionKind, captioner_folder, upscaler_folder
from tests.models import SIDE, Untyped
from tests.runs import image_row, picture, planned

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # diffusers' schedulers
COUNT = 5
ROWS = [image_row(f"a red circle {'ab' * place}", place) for place in range(COUNT)]
PICTURES = [picture(place) for place in range(COUNT)]
PASSES: dict[str, dict[str, object]] = {
    "big": {"kind": "upscale", "id": str(upscaler_folder())},
    "detail": {"kind": "refine", "strength": 0.5, "scale": 1.5},
    "words": {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8},
}


def plan_of(scratch: Path, *names: str) -> PlanResult:
    """A plan with these passes."""
    passes = {name: PASSES[name] for name in names}
    return planned(scratch, str(scratch / "out"), [{"prompt": "x"}], passes=passes)


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory: pytest.TempPathFactory) -> Untyped:
    """A loaded model, which the passes of all plans here share."""
    scratch = tmp_path_factory.mktemp("model")
    plan = plan_of(scratch, "big", "detail", "words")
    with closing(LazyDenoiser(open_store(plan.uri), plan.plan)) as open_denoiser:
        yield open_denoiser()


@pytest.fixture
def passes_of(denoiser: Denoiser, tmp_path: Path) -> Callable[..., ImagePasses]:
    """Loads these passes, each under its own name."""

    def load(*names: str) -> ImagePasses:
        result = plan_of(tmp_path / "-".join(names), *names)
        return load_passes(result.plan, open_store(result.uri), denoiser.device, denoiser)

    return load


def pixels(images: Sequence[DrawnImage]) -> list[bytes]:
    """The pixels of images that are ok."""
    assert [image.status for image in images] == ["ok"] * len(images)
    return [image.rgb.tobytes() for image in images if image.rgb is not None]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("names", [("big",), ("detail",), ("words",), ("big", "detail", "words")])
def test_an_image_comes_out_the_same_whatever_its_neighbors(
    names: tuple[str, ...], passes_of: Callable[..., ImagePasses]
) -> None:
    passes = passes_of(*names)
    together = passes(PICTURES, ROWS).images
    backwards = passes(PICTURES[::-1], ROWS[::-1]).images[::-1]
    alone = [passes([image], [row]).images[0] for image, row in zip(PICTURES, ROWS, strict=True)]
    assert pixels(together) == pixels(backwards) == pixels(alone)
    captions = [image.captions for image in together]
    assert captions == [image.captions for image in alone]
    if "words" in names:
        assert len({caption["words"] for caption in captions}) > 1
    if names != ("words",):
        assert len(set(pixels(together))) == COUNT


def test_passes_run_one_after_another(passes_of: Callable[..., ImagePasses]) -> None:
    """Each sees what the one before it made, and leaves no trace in the next."""
    both = passes_of("big", "detail")(PICTURES, ROWS)
    enlarged = passes_of("big")(PICTURES, ROWS).images
    assert [*both.seconds] == ["big", "detail"]
    sizes = [image.rgb.shape for image in both.images if image.rgb is not None]
    assert sizes == [(3 * SIDE, 3 * SIDE, 3)] * COUNT
    assert pixels(passes_of("big")(PICTURES, ROWS).images) == pixels(enlarged)
    other_way = passes_of("detail", "big")(PICTURES, ROWS).images
    assert pixels(other_way) != pixels(both.images)


def test_an_upscaled_image_is_that_of_the_library_itself(
    passes_of: Callable[..., ImagePasses],
) -> None:
    model_class: Untyped = transformers.Swin2SRForImageSuperResolution
    model = model_class.from_pretrained(upscaler_folder()).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(upscaler_folder())
    (enlarged,) = passes_of("big")(PICTURES[:1], ROWS[:1]).images
    assert PICTURES[0].rgb is not None
    inputs = processor(images=[PICTURES[0].rgb], return_tensors="pt", do_pad=False)
    with torch.no_grad():
        wanted = model(**inputs).reconstruction[0].clamp(0, 1).mul(255).round()
    difference = np.abs(wanted.permute(1, 2, 0).numpy() - enlarged.rgb)
    assert difference.max() <= 1


def test_a_second_pass_is_image_to_image_with_a_seed_of_its_own(
    passes_of: Callable[..., ImagePasses], denoiser: Denoiser
) -> None:
    (refined,) = passes_of("detail")(PICTURES[:1], ROWS[:1]).images
    side = 24
    assert PICTURES[0].rgb is not None
    image = resize_to_cover(Pillow.fromarray(PICTURES[0].rgb), side, side)
    settings = {"width": side, "height": side, "strength": 0.5, "source_image": "any"}
    for seed, is_same in ((pass_seed(0, 0), True), (0, False), (pass_seed(0, 1), False)):
        row = image_row(ROWS[0].parameters.prompt, 0, **settings, seed=seed)
        (drawn,) = denoiser.draw_over([row], {0: image}, 1, lambda: None)
        assert np.array_equal(drawn.rgb, refined.rgb) == is_same  # type: ignore[arg-type]  # both drawn


class Enlarger:
    """Stands for a model: doubles images, and has room for so many at once."""

    def __init__(self, room: int, broken: Sequence[int] = ()) -> None:
        """Take the room, and the indexes of images at which it raises."""
        self.room = room
        self.broken = broken
        self.sizes: list[int] = []

    def __call__(
        self,
        rows: Sequence[ImageRow],
        pixels: Sequence[RGB],
        size: int,
        _check: Callable[[], None],
    ) -> list[DrawnImage]:
        self.sizes.append(size)
        if size > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if any(row.index_in_part in self.broken for row in rows):
            raise RuntimeError("no such thing \ud800")
        return [
            DrawnImage(row.index_in_part, _double(rgb))
            for row, rgb in zip(rows, pixels, strict=True)
        ]


def _double(rgb: RGB) -> RGB:
    return rgb.repeat(2, axis=0).repeat(2, axis=1)


def run_stand_in(enlarger: Enlarger, images: Sequence[DrawnImage] = PICTURES) -> list[DrawnImage]:
    """The images after a pass of which this stands for the model, in batches of 4."""
    passes = ImagePasses([ImagePass("big", enlarger, lambda _size: 4)])
    return list(passes(images, ROWS[: len(images)]).images)


def test_an_image_at_which_a_pass_fails_is_failed_alone() -> None:
    images = run_stand_in(Enlarger(room=4, broken=[2]))
    assert [image.status for image in images] == ["ok", "ok", "failed", "ok", "ok"]
    assert images[2].rgb is None
    assert images[2].error == "RuntimeError: no such thing ? (in passes.big)"


def _images() -> list[RGB]:
    rng = np.random.default_rng(5)
    sizes = [(16, 16), (24, 40), (64, 8)]
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def _caption_of_the_library(kind: CaptionKind, image: RGB) -> str:
    folder = captioner_folder(kind)
    model_class: Untyped = transformers.AutoModelForImageTextToText
    model = model_class.from_pretrained(folder).eval()
    processor: Untyped = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer: Untyped = transformers.AutoTokenizer.from_pretrained(folder)
    pixels = processor(images=[image], return_tensors="pt")["pixel_values"]
    tokens = model.generate(pixel_values=pixels, max_new_tokens=8, do_sample=False)
    (text,) = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return str(text)


@pytest.mark.parametrize("kind", ["blip", "git"])
def test_captions_are_those_of_the_library_alone_and_in_a_batch(kind: CaptionKind) -> None:
    settings = CaptionPass(id=str(captioner_folder(kind)), max_tokens=8)
    describe = load_captioner(
        "passes.words", settings, weights_digest(settings), torch.device("cpu")
    )
    images = _images()
    alone = [describe([image], 4)[0] for image in images]
    assert describe(images, 4) == alone
    assert alone == [_caption_of_the_library(kind, image) for image in images]
    assert all(alone)
