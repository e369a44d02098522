"""A stand-in for a GPU's memory on a CPU: it counts the bytes of the weights that are on it."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

Untyped: TypeAlias = Any  # whatever an operation of torch takes and returns
# Another name of the CPU, which no tensor bears: moving to it copies.
CARD = torch.device("cpu", 0)
DEVICE_OF = torch.Tensor.device.__get__


class Card(TorchFunctionMode):
    """The card: while it is entered, it follows weights that this thread moves to it and back."""

    def __init__(self, weights: Iterable[torch.nn.Module]) -> None:
        """Take the networks whose weights are followed. They are on the host."""
        super().__init__()
        self.peak = 0
        self._on_host: dict[int, int] = {}  # the bytes of each storage, by its id
        self._on_card: dict[int, int] = {}
        for network in weights:
            for tensor in (*network.parameters(), *network.buffers()):
                self._add(tensor, self._on_host)

    @property
    def used(self) -> int:
        """The bytes on the card."""
        return sum(self._on_card.values())

    def __torch_function__(
        self,
        function: Callable[..., Untyped],
        types: Sequence[type],
        args: Sequence[Untyped] = (),
        kwargs: Mapping[str, Untyped] | None = None,
    ) -> Untyped:
        """Run an operation of torch, and follow moves of weights."""
        del types
        kwargs = kwargs or {}
        if function == DEVICE_OF and id(args[0].untyped_storage()) in self._on_card:
            return CARD
        devices = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.device)]
        if function is not torch.Tensor.to or not devices:
            return function(*args, **kwargs)
        weight = id(args[0].untyped_storage())
        if devices == [CARD] and weight in self._on_card:
            return args[0]
        result = function(*args, **kwargs)
        if devices == [CARD] and weight in self._on_host:
            self._add(result, self._on_card)
            self.peak = max(self.peak, self.used)
        elif weight in self._on_card:
            result = result.clone()
            self._add(result, self._on_host)
        return result

    def _add(self, tensor: torch.Tensor, place: dict[int, int]) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in place:
            place[id(storage)] = storage.nbytes()
            weakref.finalize(storage, place.pop, id(storage))
