"""What is tuned: a model and how it runs, on a GPU. An entry of the tuning file is for one, at one size."""

from dataclasses import dataclass
from datetime import UTC, datetime

from imagekiln.steps.job import Job
from imagekiln.steps.saturation import Found, Measured
from imagekiln.steps.speed import Speed
from imagekiln.steps.tuning import MOST_NAME, Entry, Key, Rate, deciding, key
from imagekiln.steps.visible import cut

GIB = 2**30
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Subject:
    """A job's model on a GPU with so many bytes, None where it shares the machine's. `digest` is of all its files."""

    job: Job
    digest: str
    guided: bool
    gpu: str
    memory: int | None

    @property
    def speed(self) -> Speed:
        """The settings that enter into how fast it is."""
        return deciding(self.job.speed)

    def key(self, size: Size) -> Key:
        """What the file has an entry for a size in pixels under."""
        dtype, gib = self.job.model.dtype, in_gib(self.memory)
        return key(self.digest, dtype, self.speed, self.gpu, gib, *size, self.guided)

    def entry(self, size: Size, found: Found, versions: dict[str, str]) -> Entry:
        """The entry for a size, of what was found just now."""
        return Entry(
            model=cut(self.job.model.id, MOST_NAME - 50),
            digest=self.digest,
            dtype=self.job.model.dtype,
            speed=self.speed,
            gpu=self.gpu,
            gpu_gib=in_gib(self.memory),
            width=size[0],
            height=size[1],
            guided=self.guided,
            batch=found.chosen.batch,
            steps=self.job.defaults.steps,
            seconds_per_image=_rounded(1 / found.chosen.rate),
            stopped=found.stopped,
            measured=tuple(map(_rate, found.measured)),
            when=datetime.now(UTC).replace(microsecond=0),
            versions=versions,
        )


def in_gib(size: int | None) -> float | None:
    """Bytes as GiB, as exactly as people read them."""
    return None if size is None else round(size / GIB, 2)


def _rate(measured: Measured) -> Rate:
    return Rate(batch=measured.batch, images_per_second=_rounded(measured.rate), peak_gib=in_gib(measured.peak))


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")
