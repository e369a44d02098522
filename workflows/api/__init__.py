"""Batch image generation: a table of prompts in, a verified image dataset out.

A job runs on this machine with one call:

```python
import imagekiln

result = imagekiln.run("job.yaml")
print(result.uri, result.summary.ok)
```

`plan`, `generate` and `aggregate` are the steps of `run`, as a cluster's pods run them. `runs`
lists the runs in an output. `verify`, `retry`, `reproduce`, `diff` and `gc` work on runs that have
ended. `dataset` reads their images, and `export` copies them into larger files.
`imagekiln.cluster` submits jobs to Argo Workflows, and `imagekiln.schedule` repeats them.
`imagekiln.checks` has the types of user-defined quality checks, `imagekiln.settings` the groups of
a job's settings, and `imagekiln.results` the types that functions return.

A job argument is a `Job`, or the path or URI of its file. A run argument is the path or URI of its
folder. Functions raise a `KilnError` on failure, whose message says what to do.

Importing this package loads nothing else. Each name is loaded on first use, and PyTorch only to
generate images.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from imagekiln import checks, cluster, results, schedule, settings
    from imagekiln.datasets import dataset, export, forget, manifests, push
    from imagekiln.local import (
        aggregate,
        diff,
        estimate,
        gc,
        generate,
        job,
        plan,
        preview,
        read_job,
        reproduce,
        retry,
        rewrite,
        run,
        runs,
        tune,
        verify,
    )
    from imagekiln.steps.errors import (
        BadInput,
        Incomplete,
        KilnError,
        Missing,
        NotInstalled,
        TryAgain,
    )
    from imagekiln.steps.job.job import ClusterSettings, Job, ModelSettings
    from imagekiln.steps.job.rows import RowDefaults

    __version__: str

__all__ = [  # noqa: RUF022  # in the order of the API reference
    "Job",
    "ModelSettings",
    "RowDefaults",
    "ClusterSettings",
    "job",
    "read_job",
    "estimate",
    "rewrite",
    "preview",
    "run",
    "plan",
    "generate",
    "aggregate",
    "runs",
    "verify",
    "retry",
    "reproduce",
    "diff",
    "gc",
    "export",
    "push",
    "forget",
    "dataset",
    "manifests",
    "tune",
    "KilnError",
    "BadInput",
    "Missing",
    "NotInstalled",
    "Incomplete",
    "TryAgain",
    "checks",
    "cluster",
    "schedule",
    "results",
    "settings",
    "__version__",
]

_ERRORS = ("KilnError", "BadInput", "Missing", "NotInstalled", "Incomplete", "TryAgain")
_SETTINGS = ("Job", "ModelSettings", "RowDefaults", "ClusterSettings")
_MODULES = {
    **dict.fromkeys(_ERRORS, "imagekiln.steps.errors"),
    **dict.fromkeys(_SETTINGS, "imagekiln.steps.job.job"),
    **dict.fromkeys(("dataset", "export", "forget", "manifests", "push"), "imagekiln.datasets"),
}


def _load(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("imagekiln")
    if name in ("checks", "cluster", "results", "schedule", "settings"):
        return import_module(f"imagekiln.{name}")
    return getattr(import_module(_MODULES.get(name, "imagekiln.local")), name)


if not TYPE_CHECKING:  # type checkers use the imports above

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = _load(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
