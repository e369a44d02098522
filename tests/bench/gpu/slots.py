"""Section `slots`: an image is the same in every place of a batch, whoever its neighbors are."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from tests.bench.gpu.networks import Inputs, Network, make_denoiser
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import Way
from tests.bench.jobs import image_bytes, run_plain
from tests.bench.measure import scratch_folder
from tests.bench.processes import in_child
from tests.bench.timing import release_memory
from tests.bench.work import Work, make_job

Untyped: TypeAlias = Any  # a module's inputs: tensors, in dictionaries or not
RowFunction = Callable[[torch.Tensor], torch.Tensor]
WAY = "regional-det"
JOB_BATCHES = 2
JOB_STEPS = 2


def measure_slots(session: Session) -> None:
    """Equal rows in all places of the denoiser, beside other neighbors, again, and by halves."""
    batch = max(2, session.work.batch)
    network = make_denoiser(
        session.model,
        session.work.side,
        rows=2 * batch,
        place=session.placement,
    )
    with Way(WAY).applied(network.module, inductor=session.on_cuda):
        _compare_places(session, network)
    del network
    release_memory()


def _compare_places(session: Session, network: Network) -> None:
    report = session.report
    equal_rows = _map_rows(network, _repeat_first)
    first, *others = _call(equal_rows)
    equal_places = all(torch.equal(first, other) for other in others)
    report.figure("slots.places", equal_places, rows=network.rows)

    mixed = _call(network)
    again = _call(network)
    equal_again = torch.equal(mixed, again)
    equal_first = torch.equal(mixed[0], first)
    report.figure("slots.again", equal_again)
    report.figure("slots.neighbors", equal_first)

    # Of another batch size, kernels may differ: this figure has no bounds.
    half_network = _map_rows(network, _first_half)
    differences = _call(half_network) - _first_half(mixed)
    largest = mixed.abs().max()
    share = float(differences.abs().max() / largest)
    report.figure("slots.half_batch_difference", share, "of the largest value")


def _call(network: Network) -> torch.Tensor:
    """The output of a call; compiled code may reuse the memory of the last one."""
    output: torch.Tensor = network.call()
    return output.clone()


def _map_rows(network: Network, function: RowFunction) -> Network:
    """The network with the function applied to every input that has a row for each image."""
    inputs = _map_input(network.inputs, network.rows, function)
    return replace(network, inputs=inputs)


def _map_input(value: Untyped, rows: int, function: RowFunction) -> Untyped:
    if isinstance(value, dict):
        mapped: Inputs = {}
        for name, member in value.items():
            mapped[name] = _map_input(member, rows, function)
        return mapped
    if _has_rows(value, rows):
        return function(value).contiguous()
    return value


def _has_rows(value: Untyped, rows: int) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.ndim > 0 and len(value) == rows


def _repeat_first(rows: torch.Tensor) -> torch.Tensor:
    first = rows[:1]
    return first.expand_as(rows)


def _first_half(rows: torch.Tensor) -> torch.Tensor:
    half = len(rows) // 2
    return rows[:half]


def measure_job_slots(session: Session) -> None:
    """A whole job whose rows come in reverse order makes the same bytes, image by image."""
    images = JOB_BATCHES * session.work.batch
    work = replace(
        session.job_work,
        images=images,
        steps=JOB_STEPS,
        compile=False,
    )
    numbers = range(images)
    reverse = numbers[::-1]
    forward = in_child(_bytes_of_job, work, numbers)
    backward = in_child(_bytes_of_job, work, reverse)
    equal = sum(backward[seed] == content for seed, content in forward.items())
    session.report.figure("slots.job", equal / images, images=images)


def _bytes_of_job(work: Work, numbers: range) -> dict[int, bytes]:
    with scratch_folder() as folder:
        uri, _ = run_plain(make_job(work, folder, numbers))
        return image_bytes(uri)
