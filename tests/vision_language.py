"""Tiny text encoders that see pictures, with their processors, as recent pipelines have them."""

from typing import Literal

import transformers

from tests.families import VOCABULARY, qwen_vl, words
from tests.models import WIDE, Untyped

IMAGE_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
MIN_PIXELS = 64 * 64  # of a picture as the encoder sees it
MAX_PIXELS = 128 * 128


def seeing_words() -> Untyped:
    """The tokenizer of `words`, with the tokens around pictures and messages."""
    tokenizer = words()
    special = ["<|im_start|>", "<|im_end|>", "<|vision_pad|>", *IMAGE_TOKENS.values()]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return tokenizer


def qwen25() -> Untyped:
    """A Qwen 2.5 VL that knows the tokens of `seeing_words`."""
    return _know_tokens(qwen_vl())


def qwen3(layers: int = 2, *, head: bool = True) -> Untyped:
    """A Qwen 3 VL of so many layers that knows the tokens of `seeing_words`."""
    text = {
        "hidden_size": WIDE,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": WIDE // 2,
        "rope_parameters": {"mrope_section": [2, 3, 3], "rope_type": "default", "rope_theta": 1e6},
        "vocab_size": VOCABULARY,
    }
    sight = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": WIDE,
        "deepstack_visual_indexes": [0],
    }
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=sight)
    if not head:
        return transformers.Qwen3VLModel(config)
    return _know_tokens(transformers.Qwen3VLForConditionalGeneration(config))


def processor(version: Literal["2.5", "3"]) -> Untyped:
    """What turns messages and pictures into the input of `qwen25` or `qwen3`."""
    tokenizer = seeing_words()
    patch = 14 if version == "2.5" else 16
    pictures = transformers.Qwen2VLImageProcessor(
        patch_size=patch, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS
    )
    if version == "2.5":
        return transformers.Qwen2VLProcessor(
            image_processor=pictures,
            tokenizer=tokenizer,
            video_processor=transformers.Qwen2VLVideoProcessor(),
            chat_template=tokenizer.chat_template,
        )
    return transformers.Qwen3VLProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    )


def _know_tokens(model: Untyped) -> Untyped:
    tokenizer = seeing_words()
    for name, token in IMAGE_TOKENS.items():
        setattr(model.config, name, tokenizer.convert_tokens_to_ids(token))
    model.resize_token_embeddings(len(tokenizer))
    return model
