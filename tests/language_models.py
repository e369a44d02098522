"""Language models with random weights and a tokenizer of words, built once in a session."""

from functools import cache
from pathlib import Path
from typing import Literal

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.models import Untyped, scratch

Kind = Literal["gpt2", "t5", "chat"]
SPECIAL = ["<pad>", "<end>", "<unk>"]
WORDS = [*"abcdefghijklmnop:", "cat", "dog", "red", "blue", "sea", "house", "Describe"]
CHAT = "{% for m in messages %}a : {{ m.content }}{% endfor %} b :"
POSITIONS = 64


@cache
def language_model(kind: Kind) -> Path:
    """A saved model, as a job names it: a few kilobytes."""
    target = scratch(kind)
    torch.manual_seed(3)
    tokenizer = _tokenizer()
    if kind == "chat":
        tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(target)
    model = _t5() if kind == "t5" else _gpt2()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(8)  # else, every text is one word
    model.save_pretrained(target)
    return target


def _tokenizer() -> Untyped:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    pad, end, unknown = SPECIAL
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, unk_token=unknown
    )


def _gpt2() -> Untyped:
    config = transformers.GPT2Config(
        vocab_size=len(SPECIAL + WORDS),
        n_positions=POSITIONS,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config)


def _t5() -> Untyped:
    config = transformers.T5Config(
        vocab_size=len(SPECIAL + WORDS),
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)
