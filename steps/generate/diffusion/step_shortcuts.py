"""Steps at which a denoiser runs without the negative prompts, or does not run at all.

The number of the step alone decides, so no image depends on its neighbors. All that a step takes
from earlier ones ends with the call of the pipeline, so no batch depends on the one before. The
whole network is replaced: hooks within it, as diffusers' caches have them, would become a part of
the compiled blocks.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import diffusers
import torch

from imagekiln.steps.generate.diffusion.patches import AnyFunction, Untyped, replaced_method
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.job.execution import SpeedSettings

# Computed before any step is extrapolated, as by diffusers' TaylorSeer cache.
FIRST_STEPS = 3


@contextmanager
def step_shortcuts(
    pipe: diffusers.DiffusionPipeline, speed: SpeedSettings, images: int
) -> Iterator[None]:
    """Have the pipeline draw a batch of so many images with the job's shortcuts in the block."""
    with ExitStack() as stack:
        if speed.guidance_interval is not None or speed.step_cache is not None:
            for network in (denoiser_network(pipe), getattr(pipe, "controlnet", None)):
                if network is not None:
                    calls = NetworkCalls(pipe, network.forward, speed, images)
                    stack.enter_context(replaced_method(network, "forward", calls.run))
        yield


class NetworkCalls:
    """The calls of one network while its pipeline draws a batch.

    With guidance, the network is called once a step, with the negative prompts in the first half of
    its rows, or twice with the same latents, the second time for the negative prompts.
    """

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        forward: AnyFunction,
        speed: SpeedSettings,
        images: int,
    ) -> None:
        """Take what the network runs, and the size of the batch."""
        self._pipe = pipe
        self._forward = forward
        self._speed = speed
        self._images = images
        self._step = -1
        self._latents: object = None
        self._output: Untyped = None
        self._computed = (OutputLine(), OutputLine())  # for the prompts and the negative ones

    def run(self, *args: Untyped, **kwargs: Untyped) -> Untyped:
        """The network's output for these arguments, of which the latents are the first."""
        latents = args[0] if args else kwargs["hidden_states"]
        is_negative = latents is self._latents
        if not is_negative:
            self._step += 1
            self._latents = latents
        if is_negative and not self._is_guided():
            return self._output  # two equal outputs: between them, guidance has no effect
        line = self._computed[is_negative]
        if line.points and self._is_extrapolated():
            self._output = line.extrapolate(self._step)
            return self._output
        if len(latents) == 2 * self._images and not self._is_guided():
            self._output = self._run_prompts(args, kwargs)
        else:
            self._output = self._forward(*args, **kwargs)
        if self._speed.step_cache is not None:
            line.points.append((self._step, self._output))
        return self._output

    def _is_guided(self) -> bool:
        """Whether guidance applies at the present step."""
        if self._speed.guidance_interval is None:
            return True
        # PixArt's pipelines do not say how many steps they draw: all.
        steps = getattr(self._pipe, "num_timesteps", len(self._pipe.scheduler.timesteps))
        start, end = self._speed.guidance_interval
        return round(start * steps) <= self._step < round(end * steps)

    def _is_extrapolated(self) -> bool:
        if self._speed.step_cache is None or self._step < FIRST_STEPS:
            return False
        return (self._step - FIRST_STEPS - 1) % self._speed.step_cache.interval != 0

    def _run_prompts(self, args: Untyped, kwargs: Untyped) -> Untyped:
        """The output for the prompts alone, also in the place of that for the negative ones."""

        def take_prompts(tensor: torch.Tensor) -> torch.Tensor:
            has_halves = tensor.dim() > 0 and len(tensor) == 2 * self._images
            return tensor[self._images :] if has_halves else tensor

        output = self._forward(
            *map_tensors(take_prompts, args), **map_tensors(take_prompts, kwargs)
        )
        return map_tensors(lambda tensor: torch.cat([tensor, tensor]), output)


class OutputLine:
    """The line through a network's two latest outputs that were computed, by steps.

    TaylorSeer's expansion of the first order (arXiv:2503.06923), applied to the last layer alone.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.points: deque[tuple[int, Untyped]] = deque(maxlen=2)

    def extrapolate(self, step: int) -> Untyped:
        """The output at a later step. It is computed in float32, whatever the network's dtype."""
        first_step, first = self.points[0]
        last_step, last = self.points[-1]
        if first_step == last_step:
            return last

        def at_step(last: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
            slope = (last.float() - first.float()) / (last_step - first_step)
            return (last.float() + slope * (step - last_step)).to(last.dtype)

        return map_tensors(at_step, last, first)


def map_tensors(function: Callable[..., torch.Tensor], *trees: Untyped) -> Untyped:
    """The first of some nested values of one structure, with tensors as a function makes them."""
    first = trees[0]
    if isinstance(first, torch.Tensor):
        return function(*trees)
    if isinstance(first, dict):
        return {name: map_tensors(function, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(map_tensors(function, *each) for each in zip(*trees, strict=True))
    return first
