"""Section `slots`: an image is the same in every place of a batch, whoever its neighbors are."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from tests.bench.gpu.networks import Network, make_denoiser
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
    rows = 2 * max(2, session.work.batch)
    network = make_denoiser(session.model, session.work.side, rows, session.placement)
    with Way(WAY).applied(network.module, inductor=session.on_cuda):
        _compare_places(session, network)
    del network
    release_memory()


def _compare_places(session: Session, network: Network) -> None:
    report = session.report
    repeated = _call(_map_rows(network, _repeat_first))
    equal_places = all(torch.equal(repeated[0], row) for row in repeated)
    report.figure("slots.places", equal_places, rows=network.rows)

    mixed = _call(network)
    again = _call(network)
    report.figure("slots.again", torch.equal(mixed, again))
    report.figure("slots.neighbors", torch.equal(mixed[0], repeated[0]))

    half = network.rows // 2
    fewer = _call(_map_rows(network, lambda rows: rows[:half]))
    difference = (fewer - mixed[:half]).abs().max()
    share = difference / mixed.abs().max()
    # Of another batch size, kernels may differ: this is to know, not to pass.
    report.figure("slots.half_batch_difference", float(share), "of the largest value")


def _call(network: Network) -> torch.Tensor:
    """The output of a call; compiled code may reuse the memory of the last one."""
    output: torch.Tensor = network.call()
    return output.clone()


def _map_rows(network: Network, function: RowFunction) -> Network:
    """The network with the function applied to every input that has a row for each image."""
    return replace(network, inputs=_map_input(network.inputs, network.rows, function))


def _map_input(value: Untyped, rows: int, function: RowFunction) -> Untyped:
    if isinstance(value, dict):
        return {name: _map_input(member, rows, function) for name, member in value.items()}
    if _has_rows(value, rows):
        return function(value).contiguous()
    return value


def _has_rows(value: Untyped, rows: int) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.ndim > 0 and len(value) == rows


def _repeat_first(rows: torch.Tensor) -> torch.Tensor:
    return rows[:1].expand_as(rows)


def measure_job_slots(session: Session) -> None:
    """A whole job whose rows come in reverse order makes the same bytes, image by image."""
    images = JOB_BATCHES * session.work.batch
    work = replace(session.job_work, images=images, steps=JOB_STEPS, compile=False)
    numbers = range(images)
    forward = in_child(_bytes_of_job, work, numbers)
    backward = in_child(_bytes_of_job, work, numbers[::-1])
    equal = sum(forward[seed] == backward[seed] for seed in forward)
    session.report.figure("slots.job", equal / images, images=images)


def _bytes_of_job(work: Work, numbers: range) -> dict[int, bytes]:
    with scratch_folder() as folder:
        uri, _ = run_plain(make_job(work, folder, numbers))
        return image_bytes(uri)
