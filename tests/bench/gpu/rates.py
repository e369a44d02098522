"""Sections `rates`, `fp8` and `switches`: whole jobs beside loops that only draw."""

from collections.abc import Mapping
from dataclasses import replace

from tests.bench.contenders import Took, measure
from tests.bench.gpu.networks import META, count_flops, decode_flops, denoiser_inputs, vae_factor
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import JOB_SWITCHES
from tests.bench.random_models import empty_component
from tests.bench.work import Work

# A contender that has less left would be killed before it says anything.
MIN_SECONDS = 20.0
NAIVE_SECONDS = 60.0


def measure_rates(session: Session) -> None:
    """The whole job, the bare loop, compiled alike, and the naive loop, in the steady state."""
    flops = image_flops(session)
    job = _measure(session, "imagekiln", session.job_work, flops)
    needs = job.whole if job else MIN_SECONDS
    bare = _measure(session, "bare", session.job_work, flops, needs=needs)
    if job and bare:
        session.report.figure("rates.job_of_bare", _ratio(job, bare), "x")
    fewer = replace(session.job_work, images=min(session.naive_images, session.work.images))
    naive = _measure(
        session, "naive", replace(fewer, batch=1, compile=False), flops, needs=NAIVE_SECONDS
    )
    if job and naive:
        session.report.figure("rates.job_of_naive", _ratio(job, naive), "x")


def measure_fp8(session: Session) -> None:
    """The whole job in fp8, and without."""
    if session.needs_cuda("fp8"):
        return
    flops = image_flops(session)
    quantized = replace(session.job_work, compile=True, fp8=True)
    eight_bit = _measure(session, "imagekiln", quantized, flops, variant="fp8")
    plain = _measure(session, "imagekiln", session.job_work, flops)
    if eight_bit and plain:
        session.report.figure("fp8.ratio", _ratio(eight_bit, plain), "x")


def measure_switches(session: Session) -> None:
    """The whole job with each candidate switch, and without any."""
    flops = image_flops(session)
    plain = _measure(session, "imagekiln", session.job_work, flops)
    for name, switch in JOB_SWITCHES.items():
        if not switch.exists():
            session.report.note(f"switches: this version does not know {name!r}.")
            continue
        work = replace(session.job_work, prepare=switch.set_constants)
        switched = _measure(
            session, "imagekiln", work, flops, variant=name, environment=switch.environment
        )
        if plain and switched:
            session.report.figure("switches.ratio", _ratio(switched, plain), "x", switch=name)


def image_flops(session: Session) -> float:
    """Operations of one image without its texts."""
    work = session.work
    denoiser = empty_component(session.model, "denoiser")
    latent_side = work.side // vae_factor(session.model)
    rows = 2 if hasattr(denoiser.config, "down_block_types") and work.guidance > 1 else 1
    step = count_flops(denoiser, denoiser_inputs(denoiser)(denoiser, rows, latent_side, META))
    return work.steps * step + decode_flops(session.model, work.side)


def _measure(
    session: Session,
    contender: str,
    work: Work,
    flops: float,
    *,
    variant: str = "",
    needs: float = MIN_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Took | None:
    if session.on_cuda and not session.has_time_for(contender, needs):
        return None
    took = measure(contender, work, **(environment or {}))
    peak = took.peak_memory / 2**30 if took.peak_memory else None
    session.report.figure(
        f"rates.{contender}",
        took.phases.steady_rate,
        "images/s",
        variant=variant or "plain",
        images=took.images,
        share_percent=100 * flops * took.phases.steady_rate / session.limit,
        head_seconds=took.phases.head,
        tail_seconds=took.phases.tail,
        whole_seconds=took.whole,
        peak_gib=peak,
    )
    return took


def _ratio(ours: Took, theirs: Took) -> float:
    return ours.phases.steady_rate / theirs.phases.steady_rate
