"""Conversion of a dataset to the Hugging Face datasets library."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from imagekiln.steps.dataset.runs import ManifestSlice
from imagekiln.steps.errors import NotInstalled
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.tables import IMAGE_FIELD

if TYPE_CHECKING:
    from imagekiln.steps.dataset.dataset import Dataset


def to_huggingface(dataset: "Dataset", *, streaming: bool) -> Any:  # noqa: ANN401  # no types
    """Convert to a `datasets.Dataset`, or with `streaming` to an `IterableDataset`."""
    try:
        # By name: type checkers mistake this repository's folder `datasets` for the library.
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise NotInstalled(
            "to_hf needs the package `datasets`. Install it: pip install datasets"
        ) from error

    features = datasets.Features.from_arrow_schema(dataset.schema)
    if IMAGE_FIELD.name in features:
        features[IMAGE_FIELD.name] = datasets.Image()
    kind = datasets.IterableDataset if streaming else datasets.Dataset
    # The library splits a list argument between its workers. The hash of the arguments, which
    # changes with every manifest, is the key of its cache.
    return kind.from_generator(
        _generate_examples,
        features=features,
        gen_kwargs={"dataset": dataset, "slices": list(dataset.slices())},
    )


def _generate_examples(
    dataset: "Dataset", slices: Sequence[ManifestSlice]
) -> Iterator[dict[str, object]]:
    for batch in dataset.read_slices(slices):
        yield from to_rows(batch)
