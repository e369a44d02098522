"""Models that score images, with random weights, of a few KB; and scores as users write them."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from imagekiln.steps.checks import ImageSpec
from tests.models import scratch

LETTERS = "abcdefghijklmnopqrstuvwxyz"
EMBEDDING = 8
SCORED_SIDE = 16
Images = Sequence[npt.NDArray[np.uint8]]
Specs = Sequence[ImageSpec]


@cache
def clip_folder() -> Path:
    """A CLIP model with its tokenizer and image processor."""
    target = scratch("clip")
    torch.manual_seed(3)
    vocabulary = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {token: number for number, token in enumerate(vocabulary)}
    (target / "vocab.json").write_text(json.dumps(numbers))
    (target / "merges.txt").write_text("#version: 0.2\n")
    layers = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    end = len(vocabulary) - 1
    config = transformers.CLIPConfig(
        text_config={
            **layers,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": 16,
            "bos_token_id": end - 1,
            "eos_token_id": end,
            "pad_token_id": end,
        },
        vision_config={**layers, "image_size": SCORED_SIDE, "patch_size": 8},
        projection_dim=EMBEDDING,
        # Without it, images of random weights are all alike.
        initializer_factor=20.0,
    )
    transformers.CLIPModel(config).save_pretrained(target)
    tokenizer = transformers.CLIPTokenizer(str(target / "vocab.json"), str(target / "merges.txt"))
    tokenizer.save_pretrained(target)
    size = {"shortest_edge": SCORED_SIDE}
    crop = {"height": SCORED_SIDE, "width": SCORED_SIDE}
    CLIPImageProcessorPil(size=size, crop_size=crop).save_pretrained(target)
    return target


@cache
def classifier_folder() -> Path:
    """An image classifier of two labels."""
    target = scratch("classifier")
    torch.manual_seed(5)
    config = transformers.ViTConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=SCORED_SIDE,
        patch_size=8,
        id2label={0: "normal", 1: "nsfw"},
        label2id={"normal": 0, "nsfw": 1},
        initializer_range=1.0,
    )
    transformers.ViTForImageClassification(config).save_pretrained(target)
    size = {"height": SCORED_SIDE, "width": SCORED_SIDE}
    ViTImageProcessorPil(size=size).save_pretrained(target)
    return target


@cache
def aesthetic_head() -> Path:
    """Two linear layers on an embedding, named as LAION's predictor names its own."""
    target = scratch("head") / "head.safetensors"
    torch.manual_seed(9)
    layers = {
        "layers.0.weight": torch.randn(4, EMBEDDING),
        "layers.0.bias": torch.randn(4),
        "layers.10.weight": torch.randn(1, 4),
        "layers.10.bias": torch.randn(1),
    }
    save_file(layers, target)
    return target


def brightness(images: Images, _specs: Specs) -> list[float]:
    """The mean of all channels."""
    return [float(image.mean()) for image in images]


class SeedScore:
    """The seed modulo a number; made once, with the name of the device."""

    def __init__(self, device: str) -> None:
        """Take the device's name."""
        self.device = device

    def __call__(self, _images: Images, specs: Specs) -> npt.NDArray[np.float32]:
        """A score by the seed alone."""
        return np.array([spec.seed % 1009 for spec in specs], dtype=np.float32)


def too_few(images: Images, _specs: Specs) -> list[float]:
    """Forget an image."""
    return [0.0] * (len(images) - 1)


def not_a_number(_images: Images, specs: Specs) -> list[float]:
    """Give no number where the seed is odd."""
    return [float("nan") if spec.seed % 2 else 1.0 for spec in specs]


def refuses_odd(images: Images, specs: Specs) -> list[float]:
    """Fail at a batch that has an odd seed, but for the first images."""
    if any(spec.seed % 2 for spec in specs):
        raise ValueError("an odd seed \ud800")
    return [1.0] * len(images)


def always_fails(_images: Images, _specs: Specs) -> list[float]:
    """Fail."""
    raise RuntimeError("no such thing")


def writes(images: Images, _specs: Specs) -> list[float]:
    """Try to change an image."""
    images[0][:] = 0
    return [0.0] * len(images)


def words(images: Images, _specs: Specs) -> list[str]:
    """Say what no number is."""
    return ["good"] * len(images)


class CannotBeMade:
    """Needs what is not there."""

    def __init__(self, _device: str) -> None:
        """Find that out."""
        raise OSError("no such weights")
