"""A loaded language model that rewrites prompts in batches, without remote code.

Each batch is seeded by its prompts, so that sampled prompts do not depend on previous batches.
Without sampling, the batch size changes results only if two tokens are equally likely up to
rounding, since padding is masked.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
from transformers.models.auto import modeling_auto

from imagekiln.steps.errors import BadInput, KilnError, TryAgain, cut_name, first_line
from imagekiln.steps.generate.diffusion.device import (
    choose_device,
    explain_machine,
    free_memory,
    is_out_of_memory,
)
from imagekiln.steps.generate.diffusion.loading import load_network
from imagekiln.steps.job.prompts import RewriteSettings
from imagekiln.steps.models.component_files import CONFIG_FILE, read_json
from imagekiln.steps.plan.input_files import Ending, RewrittenText

Untyped: TypeAlias = Any  # transformers has no types to speak of
MODEL_SETTING = "rewrite.model"
CAUSAL_CLASSES = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
SEQUENCE_CLASSES = {*modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()}
BATCH_PROMPTS = 16
MAX_NEW_TOKENS = 128  # and at most half of the model's positions
UNREAD = RewrittenText("", "unread")


def load_language_model(
    settings: RewriteSettings, folder: Path, device_name: str
) -> "LanguageModel":
    """Load the model in a folder onto the job's device.

    Raises BadInput if it is not a text generation model or needs remote code, TryAgain if the
    device fails or lacks memory.
    """
    device = choose_device(device_name)
    reference = settings.model
    classes = read_json(folder / CONFIG_FILE, reference.id).get("architectures")
    architecture = cut_name(str(classes[0])) if isinstance(classes, list) and classes else "model"
    if architecture not in CAUSAL_CLASSES | SEQUENCE_CLASSES:
        raise BadInput(
            f"{reference.id}: is a {architecture}, which writes no text. Set {MODEL_SETTING}.id to "
            "a causal or sequence-to-sequence language model."
        )
    is_sequence = architecture in SEQUENCE_CLASSES and architecture not in CAUSAL_CLASSES
    auto_class = (
        transformers.AutoModelForSeq2SeqLM if is_sequence else transformers.AutoModelForCausalLM
    )
    transformers.utils.logging.disable_progress_bar()
    options = {"trust_remote_code": False, "local_files_only": True}
    with _translate_errors(settings):
        side = "right" if is_sequence else "left"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side=side, **options)
        dtype = getattr(torch, reference.dtype)
        model = load_network(auto_class, folder, dtype=dtype, trust_remote_code=False)
        model = model.to(device).eval()
    return LanguageModel(model, tokenizer, settings)


class LanguageModel:
    """A loaded model with its tokenizer and the job's settings."""

    def __init__(self, model: Untyped, tokenizer: Untyped, settings: RewriteSettings) -> None:
        """Prepare the generation settings and the limits of the model."""
        self._model = model
        self._tokenizer = tokenizer
        self._settings = settings
        self._is_sequence = bool(model.config.is_encoder_decoder)
        self._batch_size = BATCH_PROMPTS
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        if tokenizer.pad_token is None:
            self._batch_size = 1
        config = model.config.get_text_config(decoder=True)
        positions = getattr(config, "max_position_embeddings", None) or 2**31
        self._new_tokens = min(MAX_NEW_TOKENS, positions // 2)
        # Beyond the last position, models fail or generate nonsense.
        self._most_read = positions if self._is_sequence else positions - self._new_tokens
        self._generation = self._make_generation_config()
        embeddings = model.get_input_embeddings()
        self._known_tokens = getattr(embeddings, "num_embeddings", float("inf"))

    def rewrite(self, prompts: Sequence[str]) -> list[RewrittenText]:
        """Rewrite each prompt. Batches that do not fit into memory are halved.

        Raises BadInput if the model fails, TryAgain if the device fails or lacks memory.
        """
        with _translate_errors(self._settings):
            texts = [self._instruct(prompt) for prompt in prompts]
            encoded = self._encode(texts)
            inputs = encoded["input_ids"]
        rewritten = [UNREAD] * len(prompts)
        can_read = map(self._can_read, inputs)
        readable = [place for place, is_readable in enumerate(can_read) if is_readable]
        for start in range(0, len(readable), self._batch_size):
            places = readable[start : start + self._batch_size]
            batch = [texts[place] for place in places]
            results = self._rewrite_batch(batch)
            for place, text in zip(places, results, strict=True):
                rewritten[place] = text
        return rewritten

    def _rewrite_batch(self, texts: Sequence[str]) -> list[RewrittenText]:
        try:
            with _translate_errors(self._settings):
                return self._generate(texts)
        except _OutOfMemory:
            if len(texts) == 1:
                raise
        free_memory()  # here, since the traceback with its tensors is gone
        half = len(texts) // 2
        first = self._rewrite_batch(texts[:half])
        rest = self._rewrite_batch(texts[half:])
        return [*first, *rest]

    def _instruct(self, prompt: str) -> str:
        """Build the model's input for a prompt, with its chat template if it has one."""
        text = self._settings.instruct(prompt)
        if self._is_sequence or not self._tokenizer.chat_template:
            return text
        chat = [{"role": "user", "content": text}]
        options = {"tokenize": False, "add_generation_prompt": True}
        formatted = self._tokenizer.apply_chat_template(chat, **options)
        return str(formatted)

    def _encode(self, texts: Sequence[str], **options: object) -> Untyped:
        is_chat = bool(self._tokenizer.chat_template) and not self._is_sequence
        options["add_special_tokens"] = not is_chat
        return self._tokenizer([*texts], **options)

    def _can_read(self, tokens: Sequence[int]) -> bool:
        """Return whether the model can read these tokens, so that one prompt fails no others.

        A tokenizer may have tokens that the model lacks, such as one added for padding.
        """
        count = len(tokens)
        return 0 < count <= self._most_read and max(tokens) < self._known_tokens

    def _generate(self, texts: Sequence[str]) -> list[RewrittenText]:
        inputs = self._encode(texts, return_tensors="pt", padding=len(texts) > 1)
        names = ("input_ids", "attention_mask")
        tensors = {name: inputs[name].to(self._model.device) for name in names}
        torch.manual_seed(self._seed_of(texts))
        with torch.inference_mode():
            output = self._model.generate(**tensors, generation_config=self._generation)
        read = tensors["input_ids"]
        start = read.shape[1]
        if self._is_sequence:
            read = read[:, :0]
            start = 1
        written = output[:, start:]
        pairs = zip(read.tolist(), written.tolist(), strict=True)
        return [self._decode(before, tokens) for before, tokens in pairs]

    def _decode(self, before: list[int], tokens: list[int]) -> RewrittenText:
        """Decode the tokens that follow `before`, up to the first end token."""
        ends = self._generation.eos_token_id
        end_tokens = {*ends} if isinstance(ends, list) else {ends}
        written = []
        end: Ending = "cut"
        for token in tokens:
            if token in end_tokens:
                end = "whole"
                break
            written.append(token)
        # Decoded alone, it would lack the space after the text before.
        start = self._tokenizer.decode(before, skip_special_tokens=True)
        text = self._tokenizer.decode([*before, *written], skip_special_tokens=True)
        if not text.startswith(start):
            start, text = "", self._tokenizer.decode(written, skip_special_tokens=True)
        # Tokenizers written in Python may return halves of surrogate pairs.
        encoded = text[len(start) :].replace("\0", "").encode(errors="replace")
        return RewrittenText(encoded.decode(), end)

    def _seed_of(self, texts: Sequence[str]) -> int:
        seed = self._settings.seed
        content = json.dumps([seed, *texts])
        digest = hashlib.sha256(content.encode())
        seed_bytes = digest.digest()[:7]
        return int.from_bytes(seed_bytes)

    def _make_generation_config(self) -> Untyped:
        """Copy the model's generation config, with the job's settings."""
        settings = self._settings
        generation = copy.deepcopy(self._model.generation_config)
        generation.max_length = None
        generation.max_new_tokens = self._new_tokens
        generation.num_beams = 1
        generation.num_return_sequences = 1
        generation.do_sample = settings.temperature > 0
        generation.temperature = settings.temperature or 1.0
        generation.pad_token_id = self._tokenizer.pad_token_id
        if generation.eos_token_id is None:
            generation.eos_token_id = self._tokenizer.eos_token_id
        if not generation.do_sample:
            generation.top_k = 50  # transformers' defaults: it warns of any other without sampling
            generation.top_p = 1.0
        return generation


class _OutOfMemory(TryAgain):
    """A batch did not fit in memory, but a smaller one may."""


@contextmanager
def _translate_errors(settings: RewriteSettings) -> Iterator[None]:
    """Convert errors of transformers and torch in the block to KilnError."""
    name = settings.model.id
    try:
        yield
    except KilnError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise _OutOfMemory(
                f"{name}: does not fit into the device's memory. Free some, or choose a smaller "
                f"{MODEL_SETTING}, and run the command again."
            ) from None  # the traceback would keep the tensors
        if failure := explain_machine(error):
            raise failure from error
        reason = first_line(str(error)) or type(error).__name__
        raise BadInput(
            f"{name}: cannot rewrite prompts ({reason.rstrip('.')}). Set {MODEL_SETTING}.id to "
            "another model."
        ) from error
