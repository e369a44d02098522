"""A stand-in for a GPU's memory on a CPU: it counts the bytes of weights that are moved to it."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pytest
import torch
from torch.overrides import TorchFunctionMode

from imagekiln.steps.generate.diffusion import pipeline

Untyped: TypeAlias = Any  # whatever an operation of torch takes and returns
# Another name of the CPU, which no tensor bears: moving to it copies, and moving back does not.
CARD = torch.device("cpu", 0)


class Card(TorchFunctionMode):
    """The card: while it is entered, it counts what this thread moves to it."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[int, int] = {}  # by storage

    @property
    def used(self) -> int:
        """The bytes on the card."""
        return sum(self._sizes.values())

    def holds(self, network: torch.nn.Module) -> int:
        """The bytes of a network's parameters that are on the card."""
        parts = [_plain_parts(parameter) for parameter in network.parameters()]
        return sum(
            tensor.nbytes for part in parts for tensor in part if id(_storage(tensor)) in self._sizes
        )

    def __torch_function__(
        self,
        function: Callable[..., Untyped],
        types: Sequence[type],  # noqa: ARG002
        args: Sequence[Untyped] = (),
        kwargs: Mapping[str, Untyped] | None = None,
    ) -> Untyped:
        """Run an operation of torch, and note moves."""
        result = function(*args, **(kwargs or {}))
        if function is not torch.Tensor.to:
            return result
        devices = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, torch.device)]
        if CARD in devices:
            for part in _plain_parts(result):
                self._add(part)
        elif devices and any(id(_storage(part)) in self._sizes for part in _plain_parts(result)):
            return result.clone()  # moving off the card: the copy is on the host
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        if id(storage) in self._sizes:
            return
        self._sizes[id(storage)] = tensor.nbytes
        weakref.finalize(storage, self._sizes.pop, id(storage))
        self.peak = max(self.peak, self.used)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor, or those that a quantized one is made of."""
    names = getattr(tensor, "tensor_data_names", None)
    return [getattr(tensor, name) for name in names] if names else [tensor]


def insert(monkeypatch: pytest.MonkeyPatch, gib: float | None = None) -> None:
    """Have jobs find a card of so much memory."""
    monkeypatch.setattr(pipeline, "choose_device", lambda _: CARD)
    size = None if gib is None else int(gib * 2**30)
    monkeypatch.setattr(pipeline, "device_memory", lambda _: size)
