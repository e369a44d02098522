"""Tuning: the batch size for each shape of a job, measured once on this machine's device and kept in a file."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache

from imagekiln.steps import gauge, model, tuning
from imagekiln.steps.batching import default_size
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.device import choose, describe
from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.families import family
from imagekiln.steps.identity import Pixels
from imagekiln.steps.job import Job
from imagekiln.steps.model import ModelFacts
from imagekiln.steps.opening import opened
from imagekiln.steps.pipeline import versions
from imagekiln.steps.plan import SCHEMA_VERSION, Counts, Input, Plan
from imagekiln.steps.saturation import LARGEST, Found, Measured, search
from imagekiln.steps.trial import Effort, Trial
from imagekiln.steps.tuning import Entry, Key, Rate, Tuned, deciding, key

GIB = 2**30
PROMPT = "a photograph of a lighthouse on a cliff above the sea, waves below it, clouds in the evening sun"
Size = tuple[int, int]


def tune(
    job: Job,
    file: str,
    sizes: Sequence[Size] = (),
    effort: Effort | None = None,
    *,
    again: bool = False,
    told: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Find the batch for each size in pixels, or the default one, and write it to `file` at once.

    What the file has already is measured only where it is to be `again`. `told` is told what each batch gave.
    Raises BadInput where model, size or file are not as they must be, TryAgain without the device.
    """
    bench = _Bench(job, effort or Effort(), told)
    known = {each.key: each for each in tuning.read_or_empty(file).entries}
    entries, measured = list[Entry](), 0
    for size in dict.fromkeys(sizes or [default_size(job, bench.facts)]):
        entry = None if again else known.get(bench.key(size))
        if entry is None:
            entry, measured = bench.tuned(size), measured + 1
            tuning.add(file, entry)
        entries.append(entry)
    return Tuned(file, tuple(entries), measured)


class _Bench:
    """The job's model on this machine's device, loaded when it is first needed."""

    def __init__(self, job: Job, effort: Effort, told: Callable[[str], None]) -> None:
        self.facts = model.facts(job.model)
        self._job, self._effort, self._told = job, effort, told
        self._family = family(self.facts.pipeline)
        self._device = choose(job.device)
        self._memory = gauge.memory(self._device)
        self._load: Callable[[], Denoiser] = cache(lambda: opened(_plan(job, self.facts)))
        self._end = time.monotonic() + effort.minutes * 60

    def tuned(self, size: Size) -> Entry:
        """The entry for a size, measured."""
        self._refuse(size)
        trial = Trial(self._load(), self._pixels(size), self._effort)
        most = 1 if self._family.alone else LARGEST  # it draws one image at a time, whatever the batch

        def measure(batch: int) -> Measured | None:
            found = trial.measure(batch)
            self._told(_line(size, batch, found))
            return found

        found = search(measure, self._memory, most, lambda: time.monotonic() > self._end)
        if found is None:
            raise TryAgain(f"not even one image of {_text(size)} fits in the memory of {describe(self._device)}.")
        return self._entry(size, found)

    def key(self, size: Size) -> Key:
        """What the file has an entry for a size under."""
        gpu, guided = describe(self._device), self._guided
        return key(
            " ".join(self.facts.digests), self._job.model.dtype, self._job.speed, gpu, _gib(self._memory), *size, guided
        )

    @property
    def _guided(self) -> bool:
        return self._family.guided(self._job.defaults.guidance)

    def _entry(self, size: Size, found: Found) -> Entry:
        return Entry(
            model=self._job.model.id,
            digest=" ".join(self.facts.digests),
            dtype=self._job.model.dtype,
            speed=deciding(self._job.speed),
            gpu=describe(self._device),
            gpu_gib=_gib(self._memory),
            width=size[0],
            height=size[1],
            guided=self._guided,
            batch=found.chosen.batch,
            steps=self._job.defaults.steps,
            seconds_per_image=_rounded(1 / found.chosen.rate),
            stopped=found.stopped,
            measured=tuple(map(_rate, found.measured)),
            when=datetime.now(UTC).replace(microsecond=0),
            versions=versions(),
        )

    def _pixels(self, size: Size) -> Pixels:
        given = self._job.defaults
        return Pixels(
            PROMPT, given.negative_prompt, 0, *size, steps=given.steps, guidance=given.guidance, sampler=given.sampler
        )

    def _refuse(self, size: Size) -> None:
        multiple, most = self.facts.size_multiple, self._job.limits.pixels
        if any(side < 1 or side % multiple for side in size):
            raise BadInput(f"{_text(size)}: the model's sides are multiples of {multiple} pixels. Name another size.")
        if size[0] * size[1] > most:
            raise BadInput(f"{_text(size)}: has more than {most} pixels. Name another size, or raise limits.pixels.")


def _plan(job: Job, facts: ModelFacts) -> Plan:
    """What loading the model asks of a plan: one without images."""
    size, nothing = default_size(job, facts), Input(0, 0, "")
    return Plan(SCHEMA_VERSION, "tune", job, *size, facts, nothing, Counts(0, 0, 0, 0), job.part.images, ())


def _line(size: Size, batch: int, found: Measured | None) -> str:
    if found is None:
        return f"{_text(size)}, {batch} at once: does not fit in memory"
    memory = "" if found.peak is None else f", {found.peak / GIB:.1f} GiB at most"
    return f"{_text(size)}, {batch} at once: {found.rate:.3g} images/s{memory}"


def _text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def _rate(measured: Measured) -> Rate:
    return Rate(batch=measured.batch, images_per_second=_rounded(measured.rate), peak_gib=_gib(measured.peak))


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / GIB, 2)


def _rounded(number: float) -> float:
    """As many digits as people read, and repeat."""
    return float(f"{number:.4g}")
