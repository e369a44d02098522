"""Section `denoiser`: the network of every step alone, by what is compiled and how."""

from imagekiln.steps.generate.diffusion.quantization import quantize_denoiser
from tests.bench.gpu.calls import FLUX_WAYS, UNET_WAYS
from tests.bench.gpu.networks import Network, make_denoiser
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import Way
from tests.bench.timing import (
    call_seconds,
    launch_seconds,
    median_seconds,
    release_memory,
)

# A whole denoiser compiles six times as long as its blocks.
SECONDS_PER_WAY = {"eager": 25.0, "regional": 45.0, "whole": 110.0}


def measure_denoiser(session: Session) -> None:
    """Milliseconds a call and share of the limit, for every way to run the network."""
    is_flux = session.model.endswith("flux")
    names = session.ways or (FLUX_WAYS if is_flux else UNET_WAYS)
    network = _make_network(session)
    kind = session.model.removeprefix("tiny-")
    ways = sorted(map(Way, names), key=lambda way: way.is_fp8)  # there is no way back from fp8
    for way in ways:
        if not way.is_fp8:
            _measure(session, network, way, f"denoiser.{kind}")
        elif not session.needs_cuda(f"denoiser, {way.name}"):
            quantize_denoiser(network.module, "fp8")
            _measure(session, network, way, f"denoiser.{kind}-fp8")
    del network
    release_memory()


def _make_network(session: Session) -> Network:
    """The denoiser, called for a batch: for each image twice where images are guided."""
    guided_twice = not session.model.endswith("flux")
    rows = session.work.batch * (2 if guided_twice else 1)
    return make_denoiser(session.model, session.work.side, rows, session.placement)


def _measure(session: Session, network: Network, way: Way, figure: str) -> None:
    if not session.has_time_for(f"{figure}, {way.name}", SECONDS_PER_WAY[way.extent]):
        return
    with way.applied(network.module, inductor=session.on_cuda):
        first = call_seconds(network.call)
        second = call_seconds(network.call)
        seconds = median_seconds(network.call, 4.0)
        launch = launch_seconds(network.call)
    session.report.figure(
        figure,
        100 * network.flops / seconds / session.limit,
        "% of the limit",
        way=way.name,
        rows=network.rows,
        milliseconds=1000 * seconds,
        first_seconds=first,
        second_seconds=second,
        launch_milliseconds=1000 * launch,
    )
