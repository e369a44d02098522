"""Models that enlarge and describe images, with random weights, of some KB."""

from functools import cache
from pathlib import Path
from typing import Literal

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.swin2sr.image_processing_pil_swin2sr import Swin2SRImageProcessorPil

from tests.models import Untyped, scratch

FACTOR = 2
SEEN_SIDE = 16
POSITIONS = 24
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
WORDS = ["cat", "dog", "red", "blue", "sea", "house", "tree", "sky", "on", "under", "a", "the"]
CaptionKind = Literal["blip", "git"]


@cache
def upscaler_folder(factor: int = FACTOR) -> Path:
    """A Swin2SR model that enlarges by this factor."""
    target = scratch(f"upscaler-{factor}")
    torch.manual_seed(11)
    config = transformers.Swin2SRConfig(
        image_size=16,
        embed_dim=8,
        depths=[1],
        num_heads=[1],
        window_size=4,
        mlp_ratio=1.0,
        upscale=factor,
        upsampler="pixelshuffle",
        initializer_range=0.5,
    )
    transformers.Swin2SRForImageSuperResolution(config).save_pretrained(target)
    Swin2SRImageProcessorPil().save_pretrained(target)
    return target


@cache
def captioner_folder(kind: CaptionKind = "git") -> Path:
    """A model that writes captions in a few words; a BLIP writes the same of every image."""
    target = scratch(kind)
    torch.manual_seed(13)
    _tokenizer().save_pretrained(target)
    side = {"height": SEEN_SIDE, "width": SEEN_SIDE}
    CLIPImageProcessorPil(size=side, crop_size=side).save_pretrained(target)
    model = _blip() if kind == "blip" else _git()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            # Else, every text is one word, and every image has the same.
            weights.mul_(60 if "crossattention" in name or "visual_projection" in name else 6)
    model.save_pretrained(target)
    return target


def _tokenizer() -> Untyped:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    pad, first, last, unknown = SPECIAL
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        cls_token=first,
        sep_token=last,
        unk_token=unknown,
    )


def _layers() -> dict[str, int]:
    return {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }


def _blip() -> Untyped:
    config = transformers.BlipConfig(
        text_config={
            **_layers(),
            "encoder_hidden_size": 16,
            "vocab_size": len(SPECIAL + WORDS),
            "max_position_embeddings": POSITIONS,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "sep_token_id": 2,
            "pad_token_id": 0,
        },
        vision_config={**_layers(), "image_size": SEEN_SIDE, "patch_size": 8},
        projection_dim=8,
        image_text_hidden_size=8,
    )
    return transformers.BlipForConditionalGeneration(config)


def _git() -> Untyped:
    config = transformers.GitConfig(
        **_layers(),
        vision_config={**_layers(), "image_size": SEEN_SIDE, "patch_size": 8},
        vocab_size=len(SPECIAL + WORDS),
        max_position_embeddings=POSITIONS,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.GitForCausalLM(config)
