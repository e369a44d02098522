"""Models larger than the card: the bytes on it, and the same pixels wherever weights are kept."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from imagekiln.steps.generate.diffusion import pipeline
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.placing import HOST, PlacedWeights
from imagekiln.steps.generate.diffusion.quantization import quantize_denoiser
from imagekiln.steps.job.execution import Placement, SpeedSettings
from imagekiln.steps.local import run
from imagekiln.steps.models.placement import (
    GIB,
    PLACEMENTS,
    WeightSizes,
    component_kind,
    needed_bytes,
)
from imagekiln.steps.runs.attempts import merge_stats, read_attempts
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import eighths, families, models, plain, runs
from tests.card import CARD, Card
from tests.drawing import bytes_of
from tests.models import Untyped
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]
# One of each kind: by turns of its encoders, and by its own call.
QUICK = ("klein", "bria")
KINDS = [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow)
    for kind in (*QUICK, "sd", "sdxl", "qwen-image")
]
PROMPTS = ("a red circle", "two green triangles above the star", "a star", "a red circle")


def _pipe(kind: str) -> Untyped:
    return plain.pipe(kind) if kind in plain.MAKE else families.pipe(kind)


def _rows(kind: str) -> list[ImageRow]:
    side = 64 if kind in plain.MAKE else families.SIDES.get(kind, models.SIDE)
    size = {"width": side, "height": side}
    return [image_row(prompt, place, **size) for place, prompt in enumerate(PROMPTS)]


def _networks(pipe: Untyped) -> dict[str, torch.nn.Module]:
    return {
        name: each for name, each in pipe.components.items() if isinstance(each, torch.nn.Module)
    }


def _sizes(pipe: Untyped) -> WeightSizes:
    """The sizes of a pipeline's weights as they are in memory."""
    sizes = WeightSizes()
    for name, network in _networks(pipe).items():
        for tensor in (*network.parameters(), *network.buffers()):
            kind = component_kind(name)
            largest = 0 if kind == "others" else tensor.nbytes
            sizes += WeightSizes(**{kind: tensor.nbytes}, largest=largest)
    return sizes


def _draw(denoiser: Denoiser, rows: list[ImageRow]) -> list[bytes]:
    """The bytes of rows, as one part in batches of 2."""
    denoiser.set_part(lambda: rows)
    return [*bytes_of(denoiser, rows[:2], 2), *bytes_of(denoiser, rows[2:], 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_the_same_wherever_weights_are_kept_and_the_card_holds_what_is_computed(
    kind: str,
) -> None:
    with closing(Denoiser(_pipe(kind))) as denoiser:
        drawn = _draw(denoiser, _rows(kind))
    for placement in PLACEMENTS:
        pipe = _pipe(kind)
        sizes = _sizes(pipe)
        with Card(_networks(pipe).values()) as card:
            placed = PlacedWeights(pipe, placement, CARD)
            with closing(Denoiser(pipe, placed=placed)) as denoiser:
                assert _draw(denoiser, _rows(kind)) == drawn
        needed = needed_bytes(placement, [sizes])
        assert sizes.others < card.peak <= needed
        if placement != "offload" and kind not in plain.MAKE:
            assert card.peak == needed


def test_texts_of_a_part_are_encoded_in_one_turn_and_put_back_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = _pipe("klein")
    before = [each.data_ptr() for each in pipe.text_encoder.parameters()]
    with closing(Denoiser(pipe, placed=PlacedWeights(pipe, "texts_first", CARD))) as denoiser:
        _draw(denoiser, _rows("klein"))
        assert [each.data_ptr() for each in pipe.text_encoder.parameters()] == before
        monkeypatch.setattr(pipe.text_encoder, "forward", None)  # no text is encoded again
        _draw(denoiser, _rows("klein"))


def test_a_prompt_that_fails_leaves_the_denoiser_on_the_card() -> None:
    pipe = _pipe("sd")
    with closing(Denoiser(pipe, placed=PlacedWeights(pipe, "texts_first", CARD))) as denoiser:
        drawn = bytes_of(denoiser, [image_row()], 1)
        encode = pipe.encode_prompt
        pipe.encode_prompt = None
        with pytest.raises(TypeError):
            denoiser.draw([image_row("another")], 1, lambda: None)
        pipe.encode_prompt = encode
        assert bytes_of(denoiser, [image_row()], 1) == drawn


def test_a_call_that_fails_leaves_the_card_empty_for_the_next() -> None:
    pipe = _pipe("bria")
    needed = needed_bytes("texts_first", [_sizes(pipe)])
    with Card(_networks(pipe).values()) as card:
        placed = PlacedWeights(pipe, "texts_first", CARD)
        with closing(Denoiser(pipe, placed=placed)) as denoiser:

            def stop() -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                denoiser.draw(_rows("bria")[:1], 1, stop)
            assert card.used == 0
            bytes_of(denoiser, _rows("bria")[:1], 1)
        assert card.peak <= needed


@pytest.mark.slow
def test_compiled_code_stays_valid_while_encoders_take_turns() -> None:
    torch.compiler.reset()
    counters.clear()
    on = SpeedSettings(compile="on")
    rows = _rows("sd")
    with closing(Denoiser(_pipe("sd"), on)) as denoiser:
        drawn = _draw(denoiser, rows)
    pipe = _pipe("sd")
    with closing(Denoiser(pipe, on, placed=PlacedWeights(pipe, "texts_first", CARD))) as denoiser:
        assert bytes_of(denoiser, rows[:2], 2) == drawn[:2]
        with torch.compiler.set_stance("fail_on_recompile"):
            assert bytes_of(denoiser, rows[2:], 2) == drawn[2:]  # after another turn
        assert denoiser.compiled_pipeline.mode == "regional"


@pytest.mark.parametrize("home", [HOST, CARD])
def test_fp8_has_one_layer_in_16_bits_on_the_card(
    home: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    eighths.emulate(monkeypatch)
    network = denoiser_network(families.pipe("sd", torch.bfloat16))
    expected = denoiser_network(families.pipe("sd", torch.bfloat16))
    quantize_denoiser(expected, "fp8")
    with Card([network]) as card:
        quantize_denoiser(network, "fp8", CARD, home)
    layers = [each for each in network.modules() if hasattr(getattr(each, "weight", None), "qdata")]
    in_16_bits = max(layer.weight.numel() * 2 for layer in layers)
    biases = sum(layer.bias.nbytes for layer in layers if layer.bias is not None)
    assert in_16_bits <= card.peak <= in_16_bits + biases
    for each, other in zip(network.parameters(), expected.parameters(), strict=True):
        if hasattr(other, "qdata"):
            assert torch.equal(each.qdata.view(torch.uint8), other.qdata.view(torch.uint8))
            assert torch.equal(each.scale, other.scale)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_card_that_holds_a_part_of_the_weights_draws_the_job(
    placement: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"id": str(families.folder("klein")), "dtype": "float32"}
    size = {"width": models.SIDE, "height": models.SIDE}
    rows = [{"prompt": prompt, **size} for prompt in set(PROMPTS)]
    planned = runs.planned(tmp_path, str(tmp_path / "out"), rows, model=model)
    weights = planned.plan.model.weights
    assert weights is not None
    room = needed_bytes(placement, [weights])
    memory = int((room + GIB) / 0.9) + 9
    monkeypatch.setattr(pipeline, "device_memory", lambda _: memory)
    done = run(planned.plan.job, NoProgress(), Stop())
    assert done.summary.ok == len(rows)
    for stats in merge_stats(read_attempts(open_store(done.uri))):
        assert stats.placement == placement
