"""Section `denoiser`: the network of every step alone, by what is compiled and how."""

from imagekiln.steps.generate.diffusion.quantize import quantize_to_fp8
from tests.bench.gpu.networks import Network, make_denoiser
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import FLUX_FP8_WAYS, FLUX_WAYS, UNET_WAYS, Way
from tests.bench.timing import (
    call_seconds,
    launch_seconds,
    median_seconds,
    release_memory,
)

SECONDS_PER_WAY = {"sdxl": 130.0, "flux": 35.0}
OTHER_SECONDS_PER_WAY = 60.0


def measure_denoiser(session: Session) -> None:
    """Milliseconds a call and share of the limit, for every way to run the network."""
    is_flux = session.model.endswith("flux")
    ways = session.ways or (FLUX_WAYS if is_flux else UNET_WAYS)
    network = _make_network(session)
    kind = session.model.removeprefix("tiny-")
    for name in ways:
        _measure(session, network, Way(name), f"denoiser.{kind}")
    if is_flux and not session.needs_cuda("denoiser in fp8"):
        quantize_to_fp8(network.module)
        for name in FLUX_FP8_WAYS:
            _measure(session, network, Way(name), f"denoiser.{kind}-fp8")
    del network
    release_memory()


def _make_network(session: Session) -> Network:
    """The denoiser, called for a batch: for each image twice where images are guided."""
    guided_twice = not session.model.endswith("flux")
    rows = session.work.batch * (2 if guided_twice else 1)
    return make_denoiser(session.model, session.work.side, rows, session.placement)


def _measure(session: Session, network: Network, way: Way, figure: str) -> None:
    needed = SECONDS_PER_WAY.get(session.model, OTHER_SECONDS_PER_WAY)
    if not session.has_time_for(f"{figure}, {way.name}", needed):
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
