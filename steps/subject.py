"""What is tuned: a model and how it runs, on a GPU. An entry of the tuning file is for one, at one size."""

from dataclasses import dataclass
from datetime import UTC, datetime

from imagekiln.steps.job import Job
from imagekiln.steps.saturation import BatchMeasurement, BatchSearchResult
from imagekiln.steps.speed import SpeedSettings
from imagekiln.steps.tuning import (
    MAX_TUNING_NAME_CHARS,
    BatchRate,
    TuningEntry,
    TuningKey,
    throughput_settings,
    tuning_entry_key,
)
from imagekiln.steps.visible import truncate_text

GIB = 2**30
ImageSize = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TuningTarget:
    """A job's model on a GPU with so many bytes, None where it shares the machine's. `digest` is of all its files."""

    job: Job
    digest: str
    guided: bool
    gpu: str
    memory: int | None

    @property
    def speed(self) -> SpeedSettings:
        """The settings that enter into how fast it is."""
        return throughput_settings(self.job.speed)

    def entry_key(self, size: ImageSize) -> TuningKey:
        """What the file has an entry for a size in pixels under."""
        dtype, gib = self.job.model.dtype, to_gib(self.memory)
        return tuning_entry_key(self.digest, dtype, self.speed, self.gpu, gib, *size, self.guided)

    def make_entry(self, size: ImageSize, found: BatchSearchResult, versions: dict[str, str]) -> TuningEntry:
        """The entry for a size, of what was found just now."""
        return TuningEntry(
            model=truncate_text(self.job.model.id, MAX_TUNING_NAME_CHARS - 50),
            digest=self.digest,
            dtype=self.job.model.dtype,
            speed=self.speed,
            gpu=self.gpu,
            gpu_gib=to_gib(self.memory),
            width=size[0],
            height=size[1],
            guided=self.guided,
            batch=found.best.batch_size,
            steps=self.job.defaults.steps,
            seconds_per_image=_round_significant(1 / found.best.images_per_second),
            stopped=found.stop_reason,
            measured=tuple(map(_to_rate, found.measurements)),
            when=datetime.now(UTC).replace(microsecond=0),
            versions=versions,
        )


def to_gib(size: int | None) -> float | None:
    """Bytes as GiB, as exactly as people read them."""
    return None if size is None else round(size / GIB, 2)


def _to_rate(measured: BatchMeasurement) -> BatchRate:
    return BatchRate(
        batch=measured.batch_size,
        images_per_second=_round_significant(measured.images_per_second),
        peak_gib=to_gib(measured.peak_bytes),
    )


def _round_significant(number: float) -> float:
    return float(f"{number:.4g}")
