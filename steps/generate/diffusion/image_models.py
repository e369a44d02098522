"""Models that score, check, upscale or caption images: safetensors only, no remote code.

They run in float32, on the pixels as they are stored. Batches are padded to their full size, so
that a result does not depend on its neighbors.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import diffusers
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import explained, side_stream
from imagekiln.steps.generate.diffusion.loading import load_network
from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.diffusion.transfer import to_uint8
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.passes import CaptionPass, UpscalePass
from imagekiln.steps.job.scores import (
    AestheticScore,
    AnyModelScore,
    ClassifierScore,
    RewardScore,
)
from imagekiln.steps.models.transformers_models import fetch_planned_files, fetch_planned_head
from imagekiln.steps.runs.image import DrawnImage, ImageRow, ScoreValue, pad_rows
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.stats import StageSeconds

CLIP_SCORE_SCALE = 100.0
WEIGHT_SUFFIX = ".weight"
MAX_CAPTION_CHARS = 4000
ACCEPTED = ScoreValue(0.0)  # the safety checker accepts the image
# Returns a number for each RGB uint8 (height, width, 3); takes at most as many as the batch size.
Scorer = Callable[[Sequence[RGB], Sequence[ImageRow], int], Sequence[float]]
# Returns a value for each of any number of images.
BoundScorer = Callable[[Sequence[RGB], Sequence[ImageRow]], list[ScoreValue]]
Pixels = torch.Tensor
Compute = Callable[[Pixels, Sequence[str]], torch.Tensor]
Layer = tuple[torch.Tensor, torch.Tensor]
# Takes images and the batch size; returns pixels, and whether they are finite.
Upscale = Callable[[Sequence[RGB], int], list[tuple[RGB, bool]]]
Describe = Callable[[Sequence[RGB], int], list[str]]
LOAD_OPTIONS: dict[str, Untyped] = {"trust_remote_code": False, "local_files_only": True}
# For models that score or change images, whose results are compared and stored.
MODEL_OPTIONS: dict[str, Untyped] = {"trust_remote_code": False, "dtype": torch.float32}


def explained_loading(setting: str, model_id: str, kind: str) -> AbstractContextManager[None]:
    """Convert errors that the libraries raise about a user's model in the block."""
    subject = f"{setting}: {model_id}"
    return explained(subject, f"{subject} does not load as a {kind}", "Choose another model.")


def pad_batch(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Pad a batch to `size` with its last entry, since another size gives other bytes."""
    missing = size - len(tensor)
    padding = tensor[-1:].expand(missing, *tensor.shape[1:])
    return torch.cat([tensor, padding])


def _score_by_model(
    processor: Callable[..., Untyped],
    compute: Compute,
    device: torch.device,
    stream: torch.cuda.Stream | None,
    images: Sequence[RGB],
    rows: Sequence[ImageRow],
    size: int,
) -> list[float]:
    """Score images in a batch that is padded to `size`.

    `processor` converts images to the model's input, and `compute` returns scores (batch,).
    """
    padded = pad_rows(rows, size)
    prompts = [row.parameters.prompt for row in padded]
    processed = processor(images=list(images), return_tensors="pt")
    pixels = pad_batch(processed["pixel_values"], size)
    # On the default stream, it would wait for all queued batches.
    with torch.inference_mode(), torch.cuda.stream(stream):
        scores = compute(pixels.to(device), prompts)
        numbers: list[float] = scores.float().cpu().tolist()
    return numbers[: len(images)]


class BatchScorer:
    """A scorer that runs in batches that fit in memory, and returns a value for each image."""

    def __init__(self, setting: str, score: Scorer, size: int) -> None:
        """Take the function that scores a batch of at most `size`. The size shrinks if need be."""
        self._setting = setting
        self._score = score
        self._pixels: Mapping[int, RGB] = {}
        self._any_scored = False
        self._recovery = BatchRecovery(self._score_rows, lambda _: size, setting, all_must_fit=True)

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """Score each RGB uint8 (height, width, 3).

        Raises BadInput if the scorer does not return one number per image, or fails in the first
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
        described = f"a {type(result).__name__}"
        with suppress(TypeError, ValueError):
            numbers = np.asarray(result, dtype=np.float64)
            if numbers.shape == (count,):
                return list(numbers.tolist())
            described = f"{' x '.join(map(str, numbers.shape)) or 'one'} numbers"
        raise BadInput(
            f"{self._setting}: returned {described} for {count} images. "
            "Return one number for each image."
        )


def to_score_value(number: float) -> ScoreValue:
    """Convert a number to a stored score in float32; one that is not finite becomes a reason."""
    with np.errstate(over="ignore"):
        value = float(np.float32(number))
    if not np.isfinite(value):
        return ScoreValue(None, f"the score is {number:g}, no number")
    return ScoreValue(value)


def load_model_scorer(
    plan: Plan, name: str, device: torch.device, stream: torch.cuda.Stream | None
) -> Scorer:
    """Load the model of the score with this name."""
    score = cast("AnyModelScore", plan.job.scores[name])
    setting = f"scores.{name}"
    folder = fetch_planned_files(setting, score, plan.scores.get(setting))
    processor_folder = folder
    if isinstance(score, RewardScore) and score.processor is not None:
        place = f"{setting}.processor"
        processor_folder = fetch_planned_files(place, score.processor, plan.scores.get(place))
    with explained_loading(setting, score.id, score.kind):
        processor = transformers.AutoImageProcessor.from_pretrained(
            processor_folder, **LOAD_OPTIONS
        )
        compute = _load_compute(plan, setting, score, folder, processor_folder, device)
    return partial(_score_by_model, processor, compute, device, stream)


def _load_compute(
    plan: Plan,
    setting: str,
    score: AnyModelScore,
    folder: Path,
    processor_folder: Path,
    device: torch.device,
) -> Compute:
    if isinstance(score, ClassifierScore):
        model_class: Untyped = transformers.AutoModelForImageClassification
        classifier = load_network(model_class, folder, **MODEL_OPTIONS)
        classifier = classifier.to(device).eval()
        return _label_probability(classifier, score.label)
    model = load_network(transformers.CLIPModel, folder, dtype=torch.float32)
    model = model.to(device).eval()
    if isinstance(score, AestheticScore):
        path = fetch_planned_head(f"{setting}.head", score.head, plan.scores)
        tensors = load_file(path)
        for name, tensor in tensors.items():
            tensors[name] = tensor.float().to(device)
        layers = _layers_of(tensors)
        return _embedding_score(model, layers)
    tokenizer = transformers.AutoTokenizer.from_pretrained(processor_folder, **LOAD_OPTIONS)
    scale = CLIP_SCORE_SCALE
    if isinstance(score, RewardScore):
        scale = float(model.logit_scale.detach().exp())
    return _text_agreement(model, tokenizer, scale)


def _text_agreement(model: Untyped, tokenizer: Untyped, scale: float) -> Compute:
    """Build the score: the cosine of the embeddings of image and prompt, times `scale`."""
    length = model.config.text_config.max_position_embeddings

    def compute(pixels: Pixels, prompts: Sequence[str]) -> torch.Tensor:
        # Padded to one length: the longest prompt of a batch would change the other results.
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
    """Build the score: linear layers on the normalized embedding of the image."""

    def compute(pixels: Pixels, _: Sequence[str]) -> torch.Tensor:
        features = model.get_image_features(pixel_values=pixels)
        embeddings = getattr(features, "pooler_output", features)  # a tensor before transformers 5
        values = torch.nn.functional.normalize(embeddings)
        for weight, bias in head:
            values = torch.nn.functional.linear(values, weight, bias)
        return values[:, 0]

    return compute


def _label_probability(model: Untyped, label: str) -> Compute:
    """Build the score: a label's probability, by softmax, or by sigmoid for multi-label models."""
    config = model.config
    labels: dict[int, str] = config.id2label
    index = next(index for index, name in labels.items() if name == label)
    is_multi_label = config.problem_type == "multi_label_classification"

    def compute(pixels: Pixels, _: Sequence[str]) -> torch.Tensor:
        output = model(pixel_values=pixels)
        logits = output.logits
        shares = logits.sigmoid() if is_multi_label else logits.softmax(-1)
        probabilities: torch.Tensor = shares[:, index]
        return probabilities

    return compute


def _layers_of(tensors: dict[str, torch.Tensor]) -> list[Layer]:
    """List the linear layers of a file by the numbers in their names, such as layers.0.weight."""
    names = [name for name in tensors if name.endswith(WEIGHT_SUFFIX)]
    layers: list[Layer] = []
    inputs: list[int] = []
    outputs: list[int] = []
    for name in sorted(names, key=_natural_order):
        weight = tensors.pop(name)
        no_bias = weight.new_zeros(len(weight))
        bias_name = name.removesuffix(WEIGHT_SUFFIX) + ".bias"
        layers.append((weight, tensors.pop(bias_name, no_bias)))
        inputs.append(weight.shape[-1])
        outputs.append(len(weight))
    is_chain = outputs == [*inputs[1:], 1]
    if tensors or not is_chain:
        raise ValueError("its head is no chain of linear layers that ends in one number")
    return layers


def _natural_order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


class SafetyChecker:
    """The pipeline's safety checker, run on the same pixels and batch sizes as in diffusers."""

    def __init__(
        self, pipe: diffusers.DiffusionPipeline, add: Callable[[StageSeconds], None]
    ) -> None:
        """Move the checker out of the pipeline, if it has one, so that its calls do not run it.

        `add` is called with the time of each batch.
        """
        self._judge: Scorer | None = None
        self._scorers: dict[int, BatchScorer] = {}  # by the size of the batch
        self._add = add
        if checker := getattr(pipe, "safety_checker", None):
            compute = partial(_find_refused, checker)
            stream = side_stream(pipe.device)
            extract = pipe.feature_extractor
            self._judge = partial(_score_by_model, extract, compute, pipe.device, stream)
            pipe.register_modules(safety_checker=None)

    def __call__(self, images: Sequence[RGB], rows: Sequence[ImageRow]) -> list[ScoreValue]:
        """Return 1 for each image that is refused, else 0. Raises as `BatchScorer`."""
        size = len(images)
        if self._judge is None:
            return [ACCEPTED] * size
        started = time.perf_counter()
        new = BatchScorer("the model's safety checker", self._judge, size)
        verdicts = self._scorers.setdefault(size, new)(images, rows)
        self._add(StageSeconds(safety=time.perf_counter() - started))
        return verdicts


def _find_refused(checker: Untyped, pixels: torch.Tensor, _: Sequence[str]) -> torch.Tensor:
    blackened = torch.zeros(len(pixels))  # in place of images
    _, refused = checker(images=blackened, clip_input=pixels.to(checker.dtype))
    return torch.tensor(refused)


@contextmanager
def _loading_pass(setting: str, settings: UpscalePass | CaptionPass, digest: str) -> Iterator[Path]:
    """Fetch the planned files of a pass; yield their folder to the block that loads them."""
    folder = fetch_planned_files(setting, settings, digest)
    with explained_loading(setting, settings.id, settings.kind):
        yield folder


def load_upscaler(
    setting: str, settings: UpscalePass, digest: str, device: torch.device
) -> Upscale:
    """Load the upscaler of a pass. It runs in float32 and returns which images are finite."""
    with _loading_pass(setting, settings, digest) as folder:
        model_class: Untyped = transformers.AutoModelForImageToImage
        model = load_network(model_class, folder, **MODEL_OPTIONS)
        model = model.to(device).eval()

    def upscale(images: Sequence[RGB], size: int) -> list[tuple[RGB, bool]]:
        tensor = torch.from_numpy(np.stack(images))
        pixels = pad_batch(tensor, size)
        pixels = pixels.to(device)
        with torch.inference_mode():
            scaled = pixels.permute(0, 3, 1, 2).float() / 255
            enlarged = model(pixel_values=scaled).reconstruction
            enlarged = enlarged[: len(images)]
            finite = enlarged.isfinite()
            finite = finite.flatten(1).all(1)
            rgb = to_uint8(enlarged)
        pictures = rgb.cpu().numpy()
        return list(zip(pictures, finite.tolist(), strict=True))

    return upscale


def load_captioner(
    setting: str, settings: CaptionPass, digest: str, device: torch.device
) -> Describe:
    """Load the captioner of a pass, which decodes greedily."""
    with _loading_pass(setting, settings, digest) as folder:
        processor: Untyped = transformers.AutoImageProcessor.from_pretrained(folder, **LOAD_OPTIONS)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOAD_OPTIONS)
        model_class: Untyped = transformers.AutoModelForImageTextToText
        model = load_network(model_class, folder, **MODEL_OPTIONS)
        model = model.to(device).eval()

    def describe(images: Sequence[RGB], size: int) -> list[str]:
        processed = processor(images=list(images), return_tensors="pt")
        pixels = pad_batch(processed["pixel_values"], size)
        pixels = pixels.to(device)
        with torch.inference_mode():
            tokens = model.generate(
                pixel_values=pixels,
                max_new_tokens=settings.max_tokens,
                do_sample=False,
                num_beams=1,
            )
        texts = tokenizer.batch_decode(tokens[: len(images)], skip_special_tokens=True)
        return [clean_caption(text) for text in texts]

    return describe


def clean_caption(text: str) -> str:
    """Clean a caption for storage: one line, at most the maximal length, valid in Parquet."""
    line = " ".join(text.replace("\0", " ").split())
    return line[:MAX_CAPTION_CHARS].encode(errors="replace").decode()
