"""Steps at which a denoiser runs without the negative prompts, or does not run at all.

Only the step number decides, so no image depends on others. diffusers' caches hook the blocks
instead, which are then compiled for each step.
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
    """Apply the job's shortcuts in the block, while the pipeline denoises a batch of `images`."""
    with ExitStack() as stack:
        if speed.guidance_interval is not None or speed.step_cache is not None:
            networks = [(denoiser_network(pipe), 2)]
            controlnet = getattr(pipe, "controlnet", None)
            # At steps without the denoiser, its output is unused.
            if controlnet is not None:
                networks.append((controlnet, 1))
            for network, points in networks:
                calls = NetworkCalls(pipe, network.forward, speed, images, points)
                stack.enter_context(replaced_method(network, "forward", calls.run))
        yield


@dataclass(slots=True)
class NetworkCalls:
    """The calls of one network while its pipeline denoises a batch.

    With guidance, a step is one call with the negative prompts in the first half of the rows, or
    two calls with the same latents. Skipped outputs are extrapolated from the last `points` ones.
    """

    pipe: Untyped
    forward: AnyFunction
    speed: SpeedSettings
    images: int
    points: int
    _step: int = -1
    _latents: object = None
    _output: Untyped = None
    # The last computed outputs with their steps: for the prompts, and for the negative prompts.
    _computed: tuple[Points, Points] = field(default_factory=lambda: ([], []))

    def run(self, *args: Untyped, **kwargs: Untyped) -> Untyped:
        """Compute or extrapolate the network's output. The first argument is the latents."""
        latents = args[0] if args else kwargs["hidden_states"]
        is_negative = latents is self._latents
        if not is_negative:
            self._latents = latents
            self._step += 1
        # PixArt's pipelines do not state the number of steps: they run all.
        steps = getattr(self.pipe, "num_timesteps", len(self.pipe.scheduler.timesteps))
        is_guided = self.speed.is_guided(self._step, steps)
        if is_negative and not is_guided:
            return self._output  # guidance has no effect between two equal outputs
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
        """Run the network for the prompts alone, and repeat the output for the negative prompts."""
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

    This is TaylorSeer's first order (arXiv:2503.06923), on the last layer alone, in float32.
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
    """Apply a function to every tensor in a nested value."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: map_tensors(function, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_tensors(function, item) for item in value]
    return value
