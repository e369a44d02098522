"""The models of a run, loaded when they are first needed: what draws, scores, and runs passes."""

from collections.abc import Callable

from imagekiln.steps.generate.diffusion.denoiser import Denoiser, load_denoiser
from imagekiln.steps.generate.diffusion.device import describe_device, free_memory
from imagekiln.steps.generate.diffusion.startup import Startup
from imagekiln.steps.generate.passes import load_passes
from imagekiln.steps.generate.scores import load_scorers
from imagekiln.steps.job.user_checks import import_scores
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage.store import Store


class LazyDenoiser:
    """The model that draws a run or round, with its scorers and passes."""

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
                if self._plan.job.passes:
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
