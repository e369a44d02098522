"""What a pipeline copies to the device before its first step, without a wait for the batch before.

An ordinary copy from the CPU waits until everything that was queued on its stream is done. So the
device is idle from the end of a batch until the next one's first step is launched, which matters
to models of a few steps. Copies from pinned memory do not wait, and neither do those on a stream
that has nothing else to do.

Off by default (`kernels`), because only a measurement on a GPU can tell what is gained. This covers
the copies of Stable Diffusion XL with Euler; other families and samplers have more that wait. To
list them: `torch.cuda.set_sync_debug_mode("warn")`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps

import diffusers
import torch

from imagekiln.steps.generate.diffusion.kernels import kernel_choices
from imagekiln.steps.generate.diffusion.patches import (
    AnyFunction,
    Untyped,
    mark_shared,
    replaced_method,
)


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; where batches overlap, without a wait for what is queued there."""
    if not kernel_choices().overlap_batches or device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return mark_shared(tensor.pin_memory()).to(device, non_blocking=True)


@contextmanager
def overlapped_copies(
    pipe: diffusers.DiffusionPipeline, stream: torch.cuda.Stream | None
) -> Iterator[None]:
    """Where batches overlap, have the pipeline's call copy its small inputs without a wait.

    `stream` has nothing else to do for long; None on devices that have no streams.
    """
    if not kernel_choices().overlap_batches:
        yield
        return
    scheduler = pipe.scheduler
    set_timesteps = _on_side_stream(scheduler, scheduler.set_timesteps, stream)
    with ExitStack() as stack:
        stack.enter_context(replaced_method(scheduler, "set_timesteps", set_timesteps))
        if hasattr(pipe, "_get_add_time_ids"):  # of Stable Diffusion XL and its siblings
            add_time_ids = _copied_at_once(pipe._get_add_time_ids, pipe.device)
            stack.enter_context(replaced_method(pipe, "_get_add_time_ids", add_time_ids))
        yield


def _on_side_stream(
    scheduler: object, set_timesteps: AnyFunction, stream: torch.cuda.Stream | None
) -> AnyFunction:
    @wraps(set_timesteps)
    def set_on_side_stream(*args: object, **kwargs: object) -> Untyped:
        if stream is None:
            return set_timesteps(*args, **kwargs)
        reader = torch.cuda.current_stream(stream.device)
        with torch.cuda.stream(stream):
            result = set_timesteps(*args, **kwargs)
        reader.wait_stream(stream)
        for value in vars(scheduler).values():
            if isinstance(value, torch.Tensor) and value.is_cuda:
                mark_shared(value).record_stream(reader)
        return result

    return set_on_side_stream


def _copied_at_once(get_time_ids: AnyFunction, device: torch.device) -> AnyFunction:
    @wraps(get_time_ids)
    def get_on_device(*args: object, **kwargs: object) -> Untyped:
        ids = get_time_ids(*args, **kwargs)
        if isinstance(ids, tuple):  # image to image has two
            return tuple(copy_to_device(tensor, device) for tensor in ids)
        return copy_to_device(ids, device)

    return get_on_device
