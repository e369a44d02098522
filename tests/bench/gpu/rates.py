"""Sections `rates`, `fp8` and `shortcuts`: whole jobs beside loops that only draw."""

from dataclasses import asdict, replace

from imagekiln.steps.runs.stats import ShardStats
from tests.bench.contenders import Performance, measure
from tests.bench.gpu.networks import decode_flops, denoiser_flops, is_unet
from tests.bench.gpu.report import format_seconds
from tests.bench.gpu.session import Session
from tests.bench.random_models import empty_component
from tests.bench.work import Work

# A contender that has less left would be killed before it says anything.
MIN_SECONDS = 20.0
NAIVE_SECONDS = 60.0


def measure_rates(session: Session) -> None:
    """The whole job, the bare loop, compiled alike, and the naive loop, in the steady state."""
    rates = RateMeter(session)
    work = session.job_work
    job = rates.measure("imagekiln", work)
    needs = job.whole if job is not None else MIN_SECONDS
    bare = rates.measure("bare", work, needs=needs)
    rates.compare("rates.job_of_bare", job, bare)

    images = min(session.naive_images, work.images)
    one_by_one = replace(work, images=images, batch=1, compile=False)
    naive = rates.measure("naive", one_by_one, needs=NAIVE_SECONDS)
    rates.compare("rates.job_of_naive", job, naive)
    if work.compile:
        rates.measure("bare-documented", work, needs=needs)


def measure_fp8(session: Session) -> None:
    """The whole job in fp8, and without."""
    if session.needs_cuda("fp8"):
        return
    rates = RateMeter(session)
    quantized = replace(session.job_work, compile=True, fp8=True)
    eight_bit = rates.measure("imagekiln", quantized, variant="fp8")
    plain = rates.measure("imagekiln", session.job_work)
    rates.compare("fp8.ratio", eight_bit, plain)


def measure_shortcuts(session: Session) -> None:
    """The whole job with fewer guided steps, or of Flux with fewer computed ones, and without.

    Its share of the limit counts the operations that it saves too.
    """
    rates = RateMeter(session)
    plain = rates.measure("imagekiln", session.job_work)
    work = replace(session.job_work, guidance_interval=(0.0, 0.6))
    if session.model.endswith("flux"):
        work = replace(session.job_work, step_interval=3)
    shortened = rates.measure("imagekiln", work, variant="shortened")
    rates.compare("shortcuts.ratio", shortened, plain)


class RateMeter:
    """Measures contenders and publishes their rates, beside the limit of the device."""

    def __init__(self, session: Session) -> None:
        """Count the operations of an image."""
        self._session = session
        self._flops = image_flops(session.model, session.work)

    def measure(
        self,
        contender: str,
        work: Work,
        *,
        variant: str = "plain",
        needs: float = MIN_SECONDS,
    ) -> Performance | None:
        """The performance of a contender; None where too little time is left."""
        session = self._session
        if session.on_cuda and not session.has_time_for(contender, needs):
            return None
        performance = measure(contender, work)
        self._publish(contender, variant, performance)
        if performance.stats is not None:
            self._publish_stages(contender, performance.stats)
        return performance

    def _publish_stages(self, contender: str, stats: ShardStats) -> None:
        """Say what took the job's time: without that, a ratio says nothing."""
        seconds = {**asdict(stats.seconds), "passes": 0.0}
        busy = "unknown" if stats.busy_share is None else f"{100 * stats.busy_share:.1f} %"
        stages = format_seconds(seconds)
        self._session.report.note(
            f"rates.{contender}, device busy {busy}, {stats.compile_mode}, stages: {stages}"
        )

    def compare(
        self, figure: str, ours: Performance | None, theirs: Performance | None, **details: str
    ) -> None:
        """Publish the ratio of two steady rates, if both are known."""
        if ours is None or theirs is None:
            return
        ratio = ours.steady_rate / theirs.steady_rate
        self._session.report.figure(figure, ratio, "x", **details)

    def _publish(self, contender: str, variant: str, performance: Performance) -> None:
        rate = performance.steady_rate
        phases = performance.phases
        peak_bytes = performance.peak_memory
        self._session.report.figure(
            f"rates.{contender}",
            rate,
            "images/s",
            variant=variant,
            images=performance.images,
            share_percent=100 * self._flops * rate / self._session.limit,
            head_seconds=phases.head,
            tail_seconds=phases.tail,
            whole_seconds=performance.whole,
            peak_gib=peak_bytes / 2**30 if peak_bytes else None,
        )


def image_flops(model: str, work: Work) -> float:
    """Operations of one image without its texts."""
    denoiser = empty_component(model, "denoiser")
    guided_by_row = is_unet(denoiser) and work.guidance > 1
    rows = 2 if guided_by_row else 1
    step = denoiser_flops(model, work.side, rows)
    decoding = decode_flops(model, work.side)
    return work.steps * step + decoding
