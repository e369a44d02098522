"""A stand-in for CUDA on a CPU: streams, events and tensors that notice who reads too early.

Everything is computed at once, so results are those of the CPU. What is simulated is the order that
CUDA promises, which is little: work on one stream follows other work only if that was queued before
on the same stream, or if stream, event or host waited for it. Each use of a result that nothing
orders after its computation is recorded in `races`, whether or not it would have gone wrong on a
device.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

Untyped: TypeAlias = Any  # whatever an operation of torch takes and returns
Progress = Counter["Stream"]  # of each stream: how many of its operations are done or ordered
CUDA = torch.device("cuda")
HOST_READS = {"cpu", "item", "numpy", "tolist", "__bool__", "__float__", "__int__", "__array__"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a stream, by its number."""

    stream: "Stream"
    number: int

    def is_in(self, progress: Progress) -> bool:
        """Whether it is among these."""
        return progress[self.stream] >= self.number


class Fault:
    """What goes wrong at the call with this number: operations and waits are counted from 1.

    While it `corrupts`, operations give garbage.
    """

    corrupts = False

    def __init__(self, call: int) -> None:
        self._call = call

    def raise_if_due(self, call: int, *, is_wait: bool) -> None:
        """Fail, or not."""
        if call >= self._call:
            self.strike(is_wait=is_wait)

    def strike(self, *, is_wait: bool) -> None:
        """Fail at this call or a later one."""
        raise NotImplementedError


class MemoryRunsOut(Fault):
    """One operation finds no memory."""

    has_struck = False

    def strike(self, *, is_wait: bool) -> None:
        """Fail once, at an operation."""
        if not self.has_struck and not is_wait:
            self.has_struck = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class DeviceLost(Fault):
    """Nothing works any more."""

    def strike(self, *, is_wait: bool) -> None:  # noqa: ARG002
        """Fail for good."""
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


class DeviceLostUnnoticed(DeviceLost):
    """A kernel crashed: what is queued is accepted, and only who waits is told."""

    def strike(self, *, is_wait: bool) -> None:
        """Fail for good, at waits."""
        self.corrupts = True
        if is_wait:
            super().strike(is_wait=is_wait)


class LibraryLosesDevice(Fault):
    """A library notices first, and in its own words; everything after that is torch's error."""

    has_struck = False

    def strike(self, *, is_wait: bool) -> None:
        """Fail for good."""
        if self.has_struck or is_wait:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        self.has_struck = True
        raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")


@dataclass(slots=True)
class Memory:
    """What is known of a tensor's memory: who writes it, reads it, and may not reuse it yet."""

    owner: "Stream"
    written_by: Operation | None
    on_host: bool = False
    reads: list[Operation] = field(default_factory=list)
    recorded_streams: list["Stream"] = field(default_factory=list)


class Cuda:
    """The device: its streams, what the host has waited for, and what went wrong."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.races: list[str] = []
        self.calls = 0
        self.last_wait = 0
        self.host = Progress()
        self._fault = fault
        self._lock = threading.RLock()
        self._threads = threading.local()
        self._streams: list[Stream] = []
        self._default = self.new_stream()

    def new_stream(self, device: torch.device = CUDA, priority: int = 0) -> "Stream":
        """A stream that nothing is queued on. Its priority orders nothing."""
        del priority
        stream = Stream(self, device)
        self._streams.append(stream)
        return stream

    def current_stream(self, _device: object = None) -> "Stream":
        """The stream that this thread queues on."""
        stream: Stream = getattr(self._threads, "stream", self._default)
        return stream

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        """Queue on this stream in the block, in this thread."""
        before = self.current_stream()
        self._threads.stream = stream
        try:
            yield
        finally:
            self._threads.stream = before

    def synchronize(self, _device: object = None) -> None:
        """Wait for all streams."""
        for stream in self._streams:
            stream.synchronize()

    def wait(self, progress: Progress) -> None:
        """Have the host wait for these operations."""
        with self._lock:
            self._count(is_wait=True)
            self.host |= progress

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as one that the current stream computes now."""
        return self._as_device_tensor(
            tensor, Memory(self.current_stream(), self._launch("put", ()))
        )

    def to_pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as one in pinned memory, to which copies need not wait."""
        return self._as_device_tensor(tensor, Memory(self._default, None, on_host=True))

    def operate(
        self, function: Callable[..., Untyped], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Untyped:
        """Run an operation of torch that takes tensors of ours."""
        name = function.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]  # a C descriptor
            return not tensors[0].memory.on_host
        if name in HOST_READS:
            self._read_on_host(name, tensors)
            return function(*args, **kwargs)

        result = function(*args, **kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)):
            return result  # a size, a dtype
        operation = self._launch(name, tensors)
        if self._fault is not None and self._fault.corrupts:
            tree_map(_fill_with_garbage, result)

        def track(leaf: object) -> object:
            if isinstance(leaf, DeviceTensor):  # changed in place
                leaf.memory.written_by = operation
                return leaf
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return self._as_device_tensor(leaf, Memory(operation.stream, operation))

        return tree_map(track, result)

    def _as_device_tensor(self, tensor: torch.Tensor, memory: Memory) -> "DeviceTensor":
        device_tensor = tensor.as_subclass(DeviceTensor)
        device_tensor.memory = memory
        device_tensor.stand_in = self
        if not memory.on_host:  # what frees pinned memory waits for its copies by itself
            weakref.finalize(device_tensor, self._free, memory)
        return device_tensor

    def _launch(self, name: str, reads: "Sequence[DeviceTensor]") -> Operation:
        """Queue an operation on the current stream, which reads these tensors."""
        with self._lock:
            self._count(is_wait=False)
            stream = self.current_stream()
            operation = stream.queue()
            for tensor in reads:
                memory = tensor.memory
                if memory.written_by and not memory.written_by.is_in(stream.after):
                    self.races.append(f"{name} reads what another stream may yet be computing")
                memory.reads.append(operation)
            return operation

    def _read_on_host(self, name: str, tensors: "Sequence[DeviceTensor]") -> None:
        with self._lock:
            for tensor in tensors:
                if not tensor.memory.on_host:  # the copy that this takes waits for its stream
                    self.wait(self.current_stream().after)
                written_by = tensor.memory.written_by
                if written_by and not written_by.is_in(self.host):
                    self.races.append(f"{name} reads what is not complete")

    def _free(self, memory: Memory) -> None:
        """Memory is used anew by the stream that allocated it, once that has come so far."""
        for read in memory.reads:
            is_safe = read.stream in memory.recorded_streams or read.is_in(memory.owner.after)
            if not is_safe:
                self.races.append("memory is freed that another stream may yet be reading")

    def _count(self, *, is_wait: bool) -> None:
        self.calls += 1
        if is_wait:
            self.last_wait = self.calls
        if self._fault is not None:
            self._fault.raise_if_due(self.calls, is_wait=is_wait)


def _fill_with_garbage(leaf: object) -> None:
    if isinstance(leaf, torch.Tensor):
        leaf.detach().fill_(1)


class Stream:
    """Operations that are done in their order."""

    def __init__(self, cuda: Cuda, device: torch.device = CUDA) -> None:
        self.device = device
        self._cuda = cuda
        self._ordered = Progress()

    @property
    def after(self) -> Progress:
        """What is done before the next operation of this stream can begin."""
        return self._ordered | self._cuda.host

    def queue(self) -> Operation:
        """Add an operation."""
        self._ordered[self] += 1
        self._ordered |= self._cuda.host
        return Operation(self, self._ordered[self])

    def wait_stream(self, other: "Stream") -> None:
        """Order what comes next after all that the other stream has now."""
        self._ordered |= other.after

    def synchronize(self) -> None:
        """Wait for all operations so far."""
        self._cuda.wait(self.after)

    def query(self) -> bool:
        """Whether all operations so far are done, as far as is known, unless the device is lost."""
        self._cuda.wait(Progress())
        return not self.after - self._cuda.host


class Event:
    """A point in a stream."""

    def __init__(self, cuda: Cuda, enable_timing: bool = False, blocking: bool = False) -> None:
        assert blocking, "a host that polls takes a core from those that encode"
        self._cuda = cuda
        self._timed = enable_timing
        self._after: Progress | None = None

    def record(self) -> None:
        """Take what the current stream has now."""
        self._after = self._cuda.current_stream().after

    def synchronize(self) -> None:
        """Wait for it."""
        assert self._after is not None
        self._cuda.wait(self._after)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds between two events that have both come, unless the device is lost by now."""
        self._cuda.wait(Progress())
        for event in (self, end):
            assert event._timed
            assert event._after is not None
            if event._after - self._cuda.host:
                self._cuda.races.append("the time of an event is read before it has come")
        return 1.0


class DeviceTensor(torch.Tensor):
    """A tensor on the device, or in pinned memory."""

    memory: Memory
    stand_in: Cuda

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]  # ours for torch's
        """Keep the memory until this stream has come so far."""
        self.memory.recorded_streams.append(stream)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Untyped],
        _types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Untyped:
        kwargs = kwargs or {}
        first = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor))
        with torch._C.DisableTorchFunctionSubclass():
            return first.stand_in.operate(func, args, kwargs)


def install(monkeypatch: pytest.MonkeyPatch, fault: Fault | None = None) -> Cuda:
    """Put the stand-in in the place of torch's CUDA until the test ends."""
    cuda = Cuda(fault)
    empty = torch.empty

    def empty_or_pinned(*size: object, pin_memory: bool = False, **options: object) -> torch.Tensor:
        tensor: torch.Tensor = empty(*size, **options)  # type: ignore[call-overload]  # as called
        return cuda.to_pinned(tensor) if pin_memory else tensor

    replaced: dict[str, object] = {
        "Stream": cuda.new_stream,
        "Event": lambda **options: Event(cuda, **options),
        "current_stream": cuda.current_stream,
        "stream": cuda.stream,
        "synchronize": cuda.synchronize,
        "empty_cache": cuda.synchronize,  # which it does before it frees anything
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_device_name": lambda _: "NVIDIA Stand-in",
        "get_device_properties": lambda _: SimpleNamespace(uuid=None, total_memory=1 << 34),
        "max_memory_allocated": lambda _: 1 << 30,
    }
    for name, replacement in replaced.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch, "empty", empty_or_pinned)
    return cuda
