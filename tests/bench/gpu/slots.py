"""Section `slots`: an image is the same in every place of a batch, whoever its neighbors are."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from tests.bench.gpu.networks import Inputs, Network, make_denoiser
from tests.bench.gpu.session import Session, scratch_folder
from tests.bench.gpu.switches import Way
from tests.bench.gpu.timing import release_memory
from tests.bench.jobs import image_bytes, run_plain
from tests.bench.processes import in_child
from tests.bench.work import Work, job

Untyped: TypeAlias = Any  # a module's inputs: tensors, in dictionaries or not
WAY = "regional-det"
JOB_BATCHES = 2
JOB_STEPS = 2


def measure_slots(session: Session) -> None:
    """Equal rows in all places of the denoiser, beside other neighbors, again, and by halves."""
    rows = 2 * max(2, session.work.batch)
    network = make_denoiser(session.model, session.work.side, rows, session.placement)
    with Way(WAY).applied(network.module, inductor=session.on_cuda):
        _compare_places(session, network)
    del network
    release_memory()


def _compare_places(session: Session, network: Network) -> None:
    report = session.report
    first_everywhere = _map_rows(network.inputs, network.rows, _repeat_first)
    same = _call(network, first_everywhere)
    equal_places = all(torch.equal(same[0], row) for row in same)
    report.figure("slots.places", equal_places, rows=network.rows)

    mixed = _call(network, network.inputs)
    again = _call(network, network.inputs)
    report.figure("slots.again", torch.equal(mixed, again))
    report.figure("slots.neighbors", torch.equal(mixed[0], same[0]))

    half = network.rows // 2
    half_inputs = _map_rows(network.inputs, network.rows, lambda rows: rows[:half])
    fewer = _call(network, half_inputs)
    largest = mixed.abs().max()
    difference = (fewer - mixed[:half]).abs().max() / largest
    # Of another batch size, kernels may differ: this is to know, not to pass.
    report.figure("slots.half_batch_difference", float(difference), "of the largest value")


def _call(network: Network, inputs: Inputs) -> torch.Tensor:
    result: torch.Tensor = replace(network, inputs=inputs).call()
    return result.clone()


def _map_rows(
    value: Untyped, rows: int, function: Callable[[torch.Tensor], torch.Tensor]
) -> Untyped:
    """Apply a function to every tensor that has a row for each image."""
    if isinstance(value, dict):
        return {name: _map_rows(each, rows, function) for name, each in value.items()}
    if isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == rows:
        return function(value).contiguous()
    return value


def _repeat_first(rows: torch.Tensor) -> torch.Tensor:
    return rows[:1].expand_as(rows)


def measure_job_slots(session: Session) -> None:
    """A whole job whose rows come in reverse order makes the same bytes, image by image."""
    images = JOB_BATCHES * session.work.batch
    work = replace(session.job_work, images=images, steps=JOB_STEPS, compile=False)
    forward = in_child(_bytes_of_job, work, range(images))
    backward = in_child(_bytes_of_job, work, range(images)[::-1])
    equal = sum(forward[seed] == backward[seed] for seed in forward)
    session.report.figure("slots.job", equal / images, images=images)


def _bytes_of_job(work: Work, numbers: range) -> dict[int, bytes]:
    with scratch_folder() as folder:
        uri, _ = run_plain(job(work, folder, numbers))
        return image_bytes(uri)
