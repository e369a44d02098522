"""Comparison of a model's files with the plan, in threads beside other work."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import loaded_files, model_digest
from imagekiln.steps.models.hub import is_hub_id, require_undamaged


class WeightsCheck:
    """A comparison of a model's files with its planned digest, which begins at once.

    It also brings the files into the page cache.
    """

    def __init__(self, model: ModelSettings, digest: str) -> None:
        """Begin to hash a local model. A hub model is known by its commit: nothing is read yet."""
        self._model = model
        self._planned_digest = digest
        self._downloaded: Future[None] | None = None
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(1, "weights-check")
        if is_hub_id(model.id):
            self._digest = Future[str]()
            self._digest.set_result(model_digest(model))
        else:
            self._digest = self._pool.submit(self._hash_model)

    def __enter__(self) -> Self:
        """Return the check itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def require_planned(self) -> None:
        """Wait for the result.

        Raises BadInput if the files are not the planned ones, Missing, TryAgain.
        """
        if self._digest.result() != self._planned_digest:
            raise BadInput(
                f"{self._model.id}: is not the model that the run was planned with. "
                "Restore it, or plan anew."
            )
        if self._downloaded is not None:
            self._downloaded.result()

    def add_downloaded(self, folder: Path) -> None:
        """Begin to look for damage in a downloaded model's folder in the hub's cache."""
        self._downloaded = self._pool.submit(self._check_downloaded, folder)

    def close(self) -> None:
        """End what is still being read."""
        self._closed.set()
        self._pool.shutdown()

    def _hash_model(self) -> str:
        return model_digest(self._model, self._raise_if_closed)

    def _check_downloaded(self, folder: Path) -> None:
        files = loaded_files(folder, self._model)
        require_undamaged(self._model.id, files, self._raise_if_closed)

    def _raise_if_closed(self) -> None:
        if self._closed.is_set():
            raise KilnError("the check of the model's files was closed")
