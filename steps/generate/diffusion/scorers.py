"""Models that score images, and the safety checker: safetensors only, no remote code.

They run in float32, on the pixels as they are stored. Batches are padded to their full size, so
that a score does not depend on neighbors.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import side_stream
from imagekiln.steps.generate.diffusion.loading import list_names, load_network
from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.diffusion.transformers_models import (
    LOAD_OPTIONS,
    MODEL_OPTIONS,
    explained_loading,
    pad_batch,
)
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.scores import (
    AestheticScore,
    AnyModelScore,
    ClassifierScore,
    RewardScore,
)
from imagekiln.steps.models.transformers_models import fetch_planned_files, fetch_planned_head
from imagekiln.steps.runs.image import DrawnImage, ImageRow, ScoreValue, pad_rows
from imagekiln.steps.runs.plan import Plan

CLIP_SCORE_SCALE = 100.0
WEIGHT_SUFFIX = ".weight"
BIAS_SUFFIX = ".bias"
ACCEPTED = ScoreValue(0.0)  # by the safety checker
# One number for each RGB uint8 (height, width, 3), of which there are at most as many as the last.
Scorer = Callable[[Sequence[RGB], Sequence[ImageRow], int], Sequence[float]]
# A value for each of any number of images.
BoundScorer = Callable[[Sequence[RGB], Sequence[ImageRow]], list[ScoreValue]]
Pixels = torch.Tensor
Compute = Callable[[Pixels, Sequence[str]], torch.Tensor]
Layer = tuple[torch.Tensor, torch.Tensor]


class ModelScorer:
    """A model's score. May be called from one thread at a time, beside the denoiser's."""

    def __init__(
        self,
        processor: Callable[..., Untyped],
        compute: Compute,
        device: torch.device,
        stream: torch.cuda.Stream | None,
    ) -> None:
        """Take what makes the model's input of images, and what computes (batch,) from it."""
        self._processor = processor
        self._compute = compute
        self._device = device
        self._stream = stream

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow], size: int) -> list[float]:
        """The scores of these images, computed in a batch that is padded to `size`."""
        count = len(images)
        prompts = [row.parameters.prompt for row in pad_rows(rows, size)]
        processed = self._processor(images=list(images), return_tensors="pt")
        pixels = pad_batch(processed["pixel_values"], size)
        # Behind the batches that are queued on the default stream, each would wait for all of them.
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            scores = self._compute(pixels.to(self._device), prompts)
            numbers: list[float] = scores.float().cpu().tolist()
        return numbers[:count]


class BatchScorer:
    """One score, computed in batches that fit in memory. Always gives a value for each image."""

    def __init__(self, setting: str, score: Scorer, size: int) -> None:
        """Take what computes a batch of at most `size`, which only ever shrinks."""
        self._setting = setting
        self._score = score
        self._pixels: Mapping[int, RGB] = {}
        self._any_scored = False
        self._recovery = BatchRecovery(self._score_rows, lambda _: size, setting, all_must_fit=True)

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """Score each RGB uint8 (height, width, 3).

        Raises BadInput if the scorer does not give one number an image, or fails at the first
        batch.
        """
        indexes = [row.index_in_part for row in rows]
        self._pixels = dict(zip(indexes, images, strict=True))
        values: list[ScoreValue] = []
        for batch in self._recovery.draw_batches(rows):
            if not self._any_scored:
                raise BadInput(
                    f"{self._setting}: failed at the first image ({(batch[0].error or '')[:200]}). "
                    "Correct it, and run again."
                )
            for image in batch:
                failed = ScoreValue(None, f"the score failed: {image.error}")
                values.append(image.scores.get(self._setting, failed))
        return values

    def _score_rows(self, rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:
        images = [self._pixels[row.index_in_part] for row in rows]
        numbers = self._to_numbers(self._score(images, rows, size), len(rows))
        self._any_scored = True
        return [
            DrawnImage(row.index_in_part, None, scores={self._setting: to_score_value(number)})
            for row, number in zip(rows, numbers, strict=True)
        ]

    def _to_numbers(self, result: object, count: int) -> list[float]:
        try:
            numbers = np.asarray(result, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise self._wrong_result(f"a {type(result).__name__}", count) from error
        if numbers.shape != (count,):
            shape = " x ".join(map(str, numbers.shape)) or "one"
            raise self._wrong_result(f"{shape} numbers", count)
        return list(numbers.tolist())

    def _wrong_result(self, described: str, count: int) -> BadInput:
        return BadInput(
            f"{self._setting}: returned {described} for {count} images. "
            "Return one number for each image."
        )


def to_score_value(number: float) -> ScoreValue:
    """The number as it is stored, or why there is none."""
    with np.errstate(over="ignore"):
        value = float(np.float32(number))
    if not np.isfinite(value):
        return ScoreValue(None, f"the score is {number:g}, no number")
    return ScoreValue(value)


def load_model_scorer(
    plan: Plan, name: str, device: torch.device, stream: torch.cuda.Stream | None
) -> ModelScorer:
    """The scorer of the plan's score with this name."""
    score = plan.job.scores[name]
    setting = f"scores.{name}"
    if not isinstance(score, AnyModelScore):
        raise BadInput(f"{setting}: has no model. Set its kind to one that has.")
    digest = plan.scores.get(setting)
    folder = fetch_planned_files(setting, score, digest)
    processor_folder = folder
    if isinstance(score, RewardScore) and score.processor is not None:
        place = f"{setting}.processor"
        digest = plan.scores.get(place)
        processor_folder = fetch_planned_files(place, score.processor, digest)
    with explained_loading(setting, score.id, score.kind):
        head = None
        if isinstance(score, AestheticScore):
            head = _load_head(f"{setting}.head", score.head, plan, device)
        return _load(score, folder, processor_folder, head, device, stream)


def _load(
    score: AnyModelScore,
    folder: Path,
    processor_folder: Path,
    head: list[Layer] | None,
    device: torch.device,
    stream: torch.cuda.Stream | None,
) -> ModelScorer:
    processor = transformers.AutoImageProcessor.from_pretrained(processor_folder, **LOAD_OPTIONS)
    options = dict(MODEL_OPTIONS)
    if isinstance(score, ClassifierScore):
        model_class: Untyped = transformers.AutoModelForImageClassification
    else:
        model_class = transformers.CLIPModel
        del options["trust_remote_code"]
    model = load_network(model_class, folder, **options).to(device).eval()
    if isinstance(score, ClassifierScore):
        compute = _label_probability(model, score.label)
    elif head is not None:
        compute = _embedding_score(model, head)
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(processor_folder, **LOAD_OPTIONS)
        scale = CLIP_SCORE_SCALE
        if isinstance(score, RewardScore):
            scale = float(model.logit_scale.detach().exp())
        compute = _text_agreement(model, tokenizer, scale)
    return ModelScorer(processor, compute, device, stream)


def _text_agreement(model: Untyped, tokenizer: Untyped, scale: float) -> Compute:
    """The cosine of the embeddings of image and prompt, times `scale`."""
    length = model.config.text_config.max_position_embeddings

    def compute(pixels: Pixels, prompts: Sequence[str]) -> torch.Tensor:
        # Always of one length: the longest prompt of a batch would change the others' bytes.
        texts = tokenizer(
            list(prompts),
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="pt",
        ).to(pixels.device)
        output = model(
            input_ids=texts["input_ids"],
            attention_mask=texts["attention_mask"],
            pixel_values=pixels,
        )
        cosines = torch.nn.functional.cosine_similarity(output.image_embeds, output.text_embeds)
        return scale * cosines

    return compute


def _embedding_score(model: Untyped, head: Sequence[Layer]) -> Compute:
    """Linear layers on the image's embedding of length 1."""

    def compute(pixels: Pixels, _: Sequence[str]) -> torch.Tensor:
        features = model.get_image_features(pixel_values=pixels)
        embeddings = getattr(features, "pooler_output", features)  # a tensor before transformers 5
        values = torch.nn.functional.normalize(embeddings)
        for weight, bias in head:
            values = torch.nn.functional.linear(values, weight, bias)
        return values[:, 0]

    return compute


def _label_probability(model: Untyped, label: str) -> Compute:
    """The probability of a label, among all or, if several may apply, by itself."""
    index = next(index for index, name in model.config.id2label.items() if name == label)
    is_multi_label = model.config.problem_type == "multi_label_classification"

    def compute(pixels: Pixels, _: Sequence[str]) -> torch.Tensor:
        logits = model(pixel_values=pixels).logits
        shares = logits.sigmoid() if is_multi_label else logits.softmax(-1)
        probabilities: torch.Tensor = shares[:, index]
        return probabilities

    return compute


def _load_head(setting: str, location: str, plan: Plan, device: torch.device) -> list[Layer]:
    """The layers of a file, by the order of the numbers in their names, such as layers.0.weight."""
    path = fetch_planned_head(setting, location, plan.scores)
    tensors = {name: tensor.float().to(device) for name, tensor in load_file(path).items()}
    names = sorted(
        (name.removesuffix(WEIGHT_SUFFIX) for name in tensors if name.endswith(WEIGHT_SUFFIX)),
        key=_natural_order,
    )
    known = {f"{name}{suffix}" for name in names for suffix in (WEIGHT_SUFFIX, BIAS_SUFFIX)}
    if others := tensors.keys() - known:
        raise BadInput(
            f"{setting}: {location} has {list_names([*others])}, of no linear layer. "
            "Choose another file."
        )
    layers = []
    for name in names:
        weight = tensors[f"{name}{WEIGHT_SUFFIX}"]
        bias = tensors.get(f"{name}{BIAS_SUFFIX}", weight.new_zeros(weight.shape[:1]))
        layers.append((weight, bias))
    weights = [weight for weight, _ in layers]
    fits = all(before.shape[0] == after.shape[-1] for before, after in pairwise(weights))
    if not weights or not fits or weights[-1].shape[0] != 1:
        raise BadInput(
            f"{setting}: {location} is no chain of linear layers that ends in one number. "
            "Choose another file."
        )
    return layers


def _natural_order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


class SafetyChecker:
    """Judges images as the pipeline itself would: by the same pixels, in batches of that size."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, on_checked: Callable[[float], None]
    ) -> None:
        """Take the checker from the pipeline, if it has one, so that its calls judge nothing."""
        self._judge: ModelScorer | None = None
        self._scorers: dict[int, BatchScorer] = {}  # by the size of the batch
        self._on_checked = on_checked
        if checker := getattr(pipe, "safety_checker", None):
            stream = side_stream(pipe.device)
            compute = partial(_find_refused, checker)
            self._judge = ModelScorer(pipe.feature_extractor, compute, pipe.device, stream)
            pipe.register_modules(safety_checker=None)

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """1 for each image of a batch that is refused, else 0. Raises as scores do."""
        size = len(images)
        if self._judge is None:
            return [ACCEPTED] * size
        started = time.perf_counter()
        new = BatchScorer("the model's safety checker", self._judge, size)
        verdicts = self._scorers.setdefault(size, new)(images, rows)
        self._on_checked(time.perf_counter() - started)
        return verdicts


def _find_refused(checker: Untyped, pixels: torch.Tensor, _: Sequence[str]) -> torch.Tensor:
    blackened = torch.zeros(len(pixels))  # in place of images
    _, refused = checker(images=blackened, clip_input=pixels.to(checker.dtype))
    return torch.tensor(refused)
