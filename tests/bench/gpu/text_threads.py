"""Section `threads`: what attention costs in a new thread, and how much memory it keeps.

cuDNN's plans for attention are cached by thread and never freed, so a thread for each batch's texts
would build them anew every time, and keep them for ever.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody imports it

from tests.bench.gpu.networks import Placement
from tests.bench.gpu.readings import take_readings
from tests.bench.gpu.session import Session
from tests.bench.timing import call_seconds, median_seconds

AttentionInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
THREADS = 40
CLIP_SHAPES = ((1, 12, 77, 64), (1, 20, 77, 64))  # SDXL's two text encoders: heads, tokens, width


def measure_threads(session: Session) -> None:
    """The attention of a text in one thread and in new ones, with cuDNN's kernels and without."""
    if not session.on_cuda:
        _measure(session, cudnn=False)
        return
    for cudnn in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        _measure(session, cudnn=cudnn)
    torch.backends.cuda.enable_cudnn_sdp(True)


def _measure(session: Session, *, cudnn: bool) -> None:
    report = session.report
    encode = _text_attention(session)
    encode()
    same_thread = 1000 * median_seconds(encode)
    report.figure("threads.same_thread", same_thread, "ms", cudnn=cudnn)

    before = take_readings()
    durations = [_seconds_in_new_thread(encode) for _ in range(THREADS)]
    new_thread = 1000 * statistics.median_high(durations)
    report.figure("threads.new_thread", new_thread, "ms", cudnn=cudnn)

    growth = take_readings().since(before)
    report.figure(
        "threads.growth",
        growth["host"] + growth["device"],
        "MiB",
        cudnn=cudnn,
        threads=THREADS,
    )


def _text_attention(session: Session) -> Callable[[], None]:
    inputs = [_attention_inputs(session.placement, shape) for shape in CLIP_SHAPES]

    def encode() -> None:
        with torch.no_grad():
            for query, key, value in inputs:
                F.scaled_dot_product_attention(query, key, value, is_causal=True)

    return encode


def _attention_inputs(place: Placement, shape: Sequence[int]) -> AttentionInputs:
    """A query, a key and a value."""
    query = place.random(*shape)
    key = place.random(*shape)
    value = place.random(*shape)
    return query, key, value


def _seconds_in_new_thread(call: Callable[[], None]) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call_seconds, call).result()
