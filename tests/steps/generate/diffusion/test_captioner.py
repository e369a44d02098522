"""Captions are those of the library itself, whatever images share a batch."""

import numpy as np
import pytest
import torch
import transformers

from imagekiln.steps.generate.diffusion.transformers_models import load_captioner
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.passes import CaptionPass
from imagekiln.steps.models.component_files import weights_digest
from tests.image_models import CaptionKind, captioner_folder
from tests.models import Untyped


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
