"""The models that score images, loaded by transformers: safetensors only, no remote code.

They run in float32, on the pixels as they are stored. A batch is always padded to its full size, so
that the score of an image does not depend on how many others are scored with it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.loading import list_names, load_network
from imagekiln.steps.generate.diffusion.patches import Untyped
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
from imagekiln.steps.models.hub_cache import loading_from_cache
from imagekiln.steps.models.scorers import fetch_planned_head
from imagekiln.steps.models.transformers_files import fetch_planned_files
from imagekiln.steps.runs.image import ImageRow, ScoreValue, pad_rows
from imagekiln.steps.runs.plan import Plan

CLIP_SCORE_SCALE = 100.0
WEIGHT_SUFFIX = ".weight"
BIAS_SUFFIX = ".bias"
# One number for each RGB uint8 (height, width, 3), of which there are at most as many as the last.
Scorer = Callable[[Sequence[RGB], Sequence[ImageRow], int], Sequence[float]]
# A value for each of any number of images.
BoundScorer = Callable[[Sequence[RGB], Sequence[ImageRow]], list[ScoreValue]]
Pixels = torch.Tensor
Compute = Callable[[Pixels, Sequence[str]], torch.Tensor]
Layer = tuple[torch.Tensor, torch.Tensor]


def _score_images(
    processor: Untyped,
    compute: Compute,
    device: torch.device,
    stream: torch.cuda.Stream | None,
    images: Sequence[RGB],
    rows: Sequence[ImageRow],
    size: int,
) -> list[float]:
    """The scores of these images, computed in a batch that is padded to `size`.

    `compute` gives (batch,) from what the processor makes of images.
    """
    prompts = [row.parameters.prompt for row in pad_rows(rows, size)]
    pixels = processor(images=list(images), return_tensors="pt")["pixel_values"]
    pixels = pad_batch(pixels, size)
    # Behind the batches that are queued on the default stream, each would wait for all of them.
    with torch.inference_mode(), torch.cuda.stream(stream):
        scores = compute(pixels.to(device), prompts)
        numbers: list[float] = scores.float().cpu().tolist()
    return numbers[: len(images)]


def load_model_scorer(
    plan: Plan, name: str, device: torch.device, stream: torch.cuda.Stream | None
) -> Scorer:
    """The scorer of the plan's score with this name.

    Raises BadInput where its files do not load or are not those of the plan, Missing, TryAgain.
    """
    score = plan.job.scores[name]
    setting = f"scores.{name}"
    if not isinstance(score, AnyModelScore):
        raise BadInput(f"{setting}: has no model. Set its kind to one that has.")
    folder = fetch_planned_files(setting, score, plan.scores.get(setting))
    processor, processor_folder = score.id, folder
    if isinstance(score, RewardScore) and score.processor is not None:
        processor = score.processor.id
        place = f"{setting}.processor"
        processor_folder = fetch_planned_files(place, score.processor, plan.scores.get(place))
    with (
        loading_from_cache(score.id, folder),
        loading_from_cache(processor, processor_folder),
        explained_loading(setting, score.id, score.kind),
    ):
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
) -> Scorer:
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
    return partial(
        _score_images,
        processor,
        compute,
        device,
        stream,
    )


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
    """The probability of a label, among all or, where several may apply, by itself."""
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
    fits = all(before[0].shape[0] == after[0].shape[-1] for before, after in pairwise(layers))
    if not layers or not fits or layers[-1][0].shape[0] != 1:
        raise BadInput(
            f"{setting}: {location} is no chain of linear layers that ends in one number. "
            "Choose another file."
        )
    return layers


def _natural_order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
