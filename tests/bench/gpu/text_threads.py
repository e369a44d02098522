"""Section `threads`: what attention costs in a new thread, and what of it stays in memory.

cuDNN's plans for attention are cached by thread and never freed, so a thread for each batch's texts
would build them anew every time, and keep them for ever.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody imports it

from tests.bench.gpu.readings import take_readings
from tests.bench.gpu.session import Session
from tests.bench.gpu.timing import call_seconds, median_seconds

THREADS = 40
CLIP_SHAPES = ((1, 12, 77, 64), (1, 20, 77, 64))  # SDXL's two text encoders: heads, tokens, width


def measure_threads(session: Session) -> None:
    """The attention of a text in one thread and in new ones, with cuDNN's kernels and without."""
    for cudnn in (True, False) if session.on_cuda else (False,):
        if session.on_cuda:
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
        _measure(session, cudnn=cudnn)
    if session.on_cuda:
        torch.backends.cuda.enable_cudnn_sdp(True)


def _measure(session: Session, *, cudnn: bool) -> None:
    encode = _text_attention(session)
    encode()
    same = 1000 * median_seconds(encode)
    session.report.figure("threads.same_thread", same, "ms", cudnn=cudnn)

    before = take_readings()
    seconds = sorted(_in_new_thread(encode) for _ in range(THREADS))
    session.report.figure("threads.new_thread", 1000 * seconds[THREADS // 2], "ms", cudnn=cudnn)
    grown = take_readings().since(before)
    session.report.figure(
        "threads.growth", grown["host"] + grown["device"], "MiB", cudnn=cudnn, threads=THREADS
    )


def _text_attention(session: Session) -> Callable[[], None]:
    inputs = [[session.placement.random(*shape) for _ in range(3)] for shape in CLIP_SHAPES]

    def encode() -> None:
        with torch.no_grad():
            for query, key, value in inputs:
                F.scaled_dot_product_attention(query, key, value, is_causal=True)

    return encode


def _in_new_thread(call: Callable[[], None]) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call_seconds, call).result()
