"""The models of a run, loaded when they are first needed: what draws, scores, and runs passes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser, RunPasses, load_denoiser
from imagekiln.steps.generate.diffusion.device import describe_device, free_memory
from imagekiln.steps.generate.diffusion.pipeline import open_device
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.passes import load_passes
from imagekiln.steps.generate.scores import load_scorers
from imagekiln.steps.job.user_checks import import_scores
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.start_times import StartClock
from imagekiln.steps.storage.store import Store


class LazyDenoiser:
    """The model that draws a run or round, with its scorers and, unless they come later, passes."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        startup: Startup | None = None,
        note_device: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Load nothing yet. `startup` is what a new process began.

        `note_device` is called with the name of the device once the model is loaded.
        """
        self._store = store
        self._plan = plan
        self._startup = startup
        self._note_device = note_device
        self._denoiser: Denoiser | None = None

    def __call__(self) -> Denoiser:
        """The denoiser, always the same. Raises BadInput, TryAgain as `load_denoiser` does."""
        if self._denoiser is None:
            import_scores(self._plan.job.scores)  # one that is missing needs no model to be refused
            denoiser = load_denoiser(self._plan, self._store, startup=self._startup)
            try:
                denoiser.scorers = load_scorers(self._plan, denoiser.device)
                if self._plan.job.passes and not self._plan.job.separate_passes:
                    denoiser.passes = load_passes(
                        self._plan, self._store, denoiser.device, denoiser
                    )
            except BaseException:
                denoiser.close()
                raise
            self._denoiser = denoiser
            self._note_device(describe_device(self._denoiser.device))
        return self._denoiser

    def close(self) -> None:
        """End the denoiser's threads and free its memory, where it was loaded.

        A model is in reference cycles: the next one in this process would come on top of it.
        """
        if self._denoiser is not None:
            self._denoiser.close()
            self._denoiser = None
            free_memory()


@dataclass(frozen=True, slots=True)
class LoadedPasses:
    """The passes of a job on their device, and the model that draws where one of them needs it."""

    device: torch.device
    run: RunPasses
    denoiser: Denoiser | None = None


class LazyPasses:
    """The passes of a run or round, without the model that draws unless one of them needs it."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        startup: Startup | None = None,
        note_device: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Load nothing yet. `startup` and `note_device` are as those of `LazyDenoiser`."""
        self._store = store
        self._plan = plan
        self._startup = startup
        self._note_device = note_device
        self._passes: LoadedPasses | None = None

    def __call__(self) -> LoadedPasses:
        """The passes, always the same. Raises BadInput, TryAgain as `load_passes` does."""
        if self._passes is None:
            self._passes = self._load()
            self._note_device(describe_device(self._passes.device))
        return self._passes

    def close(self) -> None:
        """Free the memory of all models, where they were loaded."""
        if self._passes is not None:
            self._passes.run.close()
            if self._passes.denoiser is not None:
                self._passes.denoiser.close()
            self._passes = None
            free_memory()

    def _load(self) -> LoadedPasses:
        plan = self._plan
        if not plan.job.refines_with_own_model:
            device = open_device(plan, StartClock())
            return LoadedPasses(device, load_passes(plan, self._store, device))
        denoiser = load_denoiser(plan, self._store, startup=self._startup)
        try:
            passes = load_passes(plan, self._store, denoiser.device, denoiser)
        except BaseException:
            denoiser.close()
            raise
        return LoadedPasses(denoiser.device, passes, denoiser)
