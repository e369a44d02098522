"""Floating-point operations, counted once for each shape of a model's inputs, on a copy of it without weights.

The copy computes shapes alone (https://docs.pytorch.org/docs/stable/meta.html), so that counting takes neither the
device nor its memory, and what compiles, quantises or shortens the real model does not enter: the count is of the
model as its configuration defines it, for its matrix products, convolutions and attention.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

MOST_LENGTHS = 3  # texts of many lengths are as many shapes, which differ by little
Part = Literal["denoiser", "refiner", "decoder"]
Inputs = tuple[tuple[object, ...], dict[str, object]]


def worth_it(device: torch.device) -> bool:
    """Whether to count: on a CPU, whose limit nobody knows, it would only take from the images."""
    return device.type == "cuda"


@dataclass(frozen=True, slots=True)
class Call:
    """What a call's inputs look like: `first` is the first tensor's shape, `elements` the numbers of all together."""

    part: Part
    inputs: Hashable
    first: tuple[int, ...]
    elements: int


class Flops:
    """Counts calls of a denoiser and of its decoder. What cannot be counted is None, and never an error."""

    def __init__(self, models: Mapping[Part, torch.nn.Module | None]) -> None:
        """Take the models, which are not touched."""
        self._models = models
        self._copies: dict[Part, Callable[..., object]] = {}
        self._counted: dict[Call, float | None] = {}
        self._waiting: dict[Call, Inputs] = {}

    def note(self, part: Part, places: tuple[object, ...], names: dict[str, object]) -> Call:
        """What is to be counted of a call with these inputs. Cheap, and keeps none of them."""
        tensors = list(_tensors((places, names)))
        first = tuple(tensors[0].shape) if tensors else ()
        call = Call(part, _look((places, names)), first, sum(each.numel() for each in tensors))
        if call not in self._counted and call not in self._waiting:
            self._waiting[call] = tuple(map(_empty, places)), {name: _empty(each) for name, each in names.items()}
        return call

    def count(self) -> None:
        """Count what was noted and not counted yet: a second or so for each new shape of a large model."""
        while self._waiting:
            call, inputs = self._waiting.popitem()
            kin = self._kin(call)
            if len(kin) < MOST_LENGTHS:
                self._counted[call] = self._tried(call.part, inputs)
            else:
                nearest = min(kin, key=lambda other: abs(other.elements - call.elements))
                self._counted[call] = self._counted[nearest]

    def sum(self, calls: Sequence[Call]) -> float | None:
        """The operations of a batch's calls; None where one could not be counted, or none of a denoiser was seen."""
        counts = [self._counted.get(call) for call in calls]
        known = [count for count in counts if count is not None]
        whole = len(known) == len(counts) and any(call.part == "denoiser" for call in calls)
        return sum(known) if whole else None

    def _kin(self, call: Call) -> list[Call]:
        return [each for each in self._counted if (each.part, each.first) == (call.part, call.first)]

    def _tried(self, part: Part, inputs: Inputs) -> float | None:
        try:
            run, (places, names) = self._copy(part), inputs
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                run(*places, **names)
        except Exception:  # noqa: BLE001  # a stranger's model, which may look at numbers that are not there
            return None
        return float(counter.get_total_flops()) or None

    def _copy(self, part: Part) -> Callable[..., object]:
        """What computes a call's shapes. Raises where the model cannot be copied."""
        if part not in self._copies:
            model = self._models[part]
            plain: Any = getattr(model, "_orig_mod", model)  # as it was before torch.compile
            with torch.device("meta"):
                copy = type(plain).from_config(plain.config).eval()
            self._copies[part] = copy.decode if part == "decoder" else copy
        return self._copies[part]


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _look(value: object) -> Hashable:
    """What of an input decides the work: shapes and switches, and no numbers such as the time of a step."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return tuple((name, _look(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_look, value))
    return value if isinstance(value, bool | str | None) else type(value).__name__


def _empty(value: object) -> object:
    """The same input without its numbers, in the precision of the copy."""
    if isinstance(value, torch.Tensor):
        dtype = torch.float32 if value.is_floating_point() else value.dtype
        return torch.empty(value.shape, dtype=dtype, device="meta")
    if isinstance(value, dict):
        return {name: _empty(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_empty, value))
    return value
