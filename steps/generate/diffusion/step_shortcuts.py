"""Steps at which a denoiser runs without the negative prompts, or does not run at all.

Only the number of the step decides, so no image depends on others. diffusers' caches hook blocks
instead, which are then compiled step by step.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from imagekiln.steps.generate.diffusion.patches import AnyFunction, Untyped, replaced_method
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.job.execution import SpeedSettings

Points: TypeAlias = list[tuple[int, Untyped]]  # steps and outputs


@contextmanager
def step_shortcuts(pipe: Untyped, speed: SpeedSettings, images: int) -> Iterator[None]:
    """Have the pipeline draw a batch of so many images with the job's shortcuts in the block."""
    with ExitStack() as stack:
        if speed.guidance_interval is not None or speed.step_cache is not None:
            networks = [(denoiser_network(pipe), 2)]
            controlnet = getattr(pipe, "controlnet", None)
            # At steps without the denoiser, nobody reads what it returns.
            if controlnet is not None:
                networks.append((controlnet, 1))
            for network, points in networks:
                calls = NetworkCalls(pipe, network.forward, speed, images, points)
                stack.enter_context(replaced_method(network, "forward", calls.run))
        yield


@dataclass(slots=True)
class NetworkCalls:
    """The calls of one network while its pipeline draws a batch.

    With guidance, a step is one call with the negative prompts in the first half of the rows, or
    two calls with the same latents. Later outputs follow from the last `points` ones.
    """

    pipe: Untyped
    forward: AnyFunction
    speed: SpeedSettings
    images: int
    points: int
    _step: int = -1
    _latents: object = None
    _output: Untyped = None
    # The latest that were computed, with their steps: for the prompts, for the negative ones.
    _computed: tuple[Points, Points] = field(default_factory=lambda: ([], []))

    def run(self, *args: Untyped, **kwargs: Untyped) -> Untyped:
        """The network's output for these arguments, of which the latents are the first."""
        latents = args[0] if args else kwargs["hidden_states"]
        is_negative = latents is self._latents
        if not is_negative:
            self._latents = latents
            self._step += 1
        # PixArt's pipelines do not say how many steps they draw: all.
        steps = getattr(self.pipe, "num_timesteps", len(self.pipe.scheduler.timesteps))
        is_guided = self.speed.is_guided(self._step, steps)
        if is_negative and not is_guided:
            return self._output  # between two equal outputs, guidance has no effect
        computed = self._computed[is_negative]
        if computed and self.speed.is_extrapolated(self._step):
            self._output = extrapolate(computed, self._step)
            return self._output
        if is_guided or len(latents) == self.images:
            self._output = self.forward(*args, **kwargs)
        else:
            self._output = self._run_prompts(args, kwargs)
        computed.append((self._step, self._output))
        del computed[: -self.points]
        return self._output

    def _run_prompts(self, args: Untyped, kwargs: Untyped) -> Untyped:
        """The output for the prompts alone, also in the place of that for the negative ones."""
        args, kwargs = map_tensors(self._take_prompts, (args, kwargs))
        output = self.forward(*args, **kwargs)

        def double(tensor: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor, tensor])

        return map_tensors(double, output)

    def _take_prompts(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or len(tensor) != 2 * self.images:
            return tensor
        return tensor[self.images :]


def extrapolate(computed: Points, step: int) -> Untyped:
    """Extrapolate the output at a later step from the first and the last computed ones.

    That is TaylorSeer's first order (arXiv:2503.06923), on the last layer alone, in float32.
    """
    first_step, first = computed[0]
    last_step, last = computed[-1]
    if first_step == last_step:
        return last
    latest = last[0].float()
    slope = (latest - first[0].float()) / (last_step - first_step)
    output = latest + slope * (step - last_step)
    return (output.to(last[0].dtype),)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Untyped) -> Untyped:
    """A nested value, with its tensors as a function makes them."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: map_tensors(function, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_tensors(function, item) for item in value]
    return value
