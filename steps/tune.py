"""Tuning: the batch size for each size of a job's images, measured once on this machine's device and kept in a file."""

import time
from collections.abc import Callable, Sequence
from functools import cache

from imagekiln.steps import fitting, gauge, model, tuning_file
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
from imagekiln.steps.subject import Size, Subject, in_gib
from imagekiln.steps.trial import Effort, Trial
from imagekiln.steps.tuning import Tuned

PROMPT = "a photograph of a lighthouse on a cliff above the sea, waves below it, clouds in the evening sun"


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
    known = {} if again else {each.key: each for each in tuning_file.read_or_empty(file).entries}
    entries, measured = [], 0
    for size in dict.fromkeys(sizes or [default_size(job, bench.facts)]):
        if (entry := known.get(bench.subject.key(size))) is None:
            if not measured:
                tuning_file.require_writable(file)
            entry, measured = bench.subject.entry(size, bench.found(size), versions(job)), measured + 1
            tuning_file.add(file, entry)
        entries.append(entry)
    return Tuned(file, tuple(entries), measured)


class _Bench:
    """The job's model on this machine's device, loaded when it is first needed."""

    def __init__(self, job: Job, effort: Effort, told: Callable[[str], None]) -> None:
        device = choose(job.device)
        self.facts = model.facts(job.model)
        fitting.require(job, self.facts.pipeline)
        self._family = family(self.facts.pipeline)
        guided = self._family.guided(job.defaults.guidance)
        self.subject = Subject(job, self.facts.digest, guided, describe(device), gauge.memory(device))
        self._job, self._effort, self._told = job, effort, told
        self._load: Callable[[], Denoiser] = cache(lambda: opened(_plan(job, self.facts)))

    def found(self, size: Size) -> Found:
        """What the search for a size found."""
        self._refuse(size)
        denoiser = self._load()
        denoiser.decoding.anew()  # memory that ran out for another size says nothing of this one
        trial, end = Trial(denoiser, self._pixels(size), self._effort), self._effort.minutes * 60 + time.monotonic()
        most = 1 if self._family.alone else LARGEST  # it draws one image at a time, whatever the batch

        def measure(batch: int) -> Measured | None:
            found = trial.measure(batch)
            self._told(_line(size, batch, found))
            return found

        found = search(measure, self.subject.memory, most, lambda: time.monotonic() > end)
        if found is None:
            raise TryAgain(f"not even one image of {_text(size)} fits in the memory of {self.subject.gpu}. Free it.")
        return found

    def _pixels(self, size: Size) -> Pixels:
        given = self._job.defaults
        return Pixels(PROMPT, given.negative_prompt, 0, *size, given.steps, given.guidance, given.sampler)

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
    memory = "" if found.peak is None else f", {in_gib(found.peak)} GiB at most"
    return f"{_text(size)}, {batch} at once: {found.rate:.3g} images/s{memory}"


def _text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"
