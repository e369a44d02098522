"""Work in processes of its own, which may be killed: each begins with torch already imported."""

import gc
import os
import signal
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess

from tqdm import tqdm

from imagekiln.steps.job.job import Job
from imagekiln.steps.runtime.progress import NoProgress

# Modules whose import takes seconds, and pytest, because children import the main module again.
PRELOAD = [
    "diffusers.guiders",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion",
    "imagekiln.steps.aggregate.step",
    "imagekiln.steps.generate.step",
    "imagekiln.workflows.cli.main",
    "pandas",  # pyarrow imports it where it is there
    "pytest",
    "s3fs",
    "tests.processes",
    "transformers.models.clip.modeling_clip",
    "transformers.models.clip.tokenization_clip",
]


Begun = Callable[[], None]


class Child:
    """A process that runs one function, whose first argument reports that work has begun."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        """Start the process with the current environment."""
        self._receiver, says = _context().Pipe(duplex=False)
        everything = (dict(os.environ), says, work, arguments)
        self._process: ForkServerProcess = _context().Process(target=_run, args=everything)
        self._process.start()
        says.close()

    def wait_until_begun(self) -> None:
        """Wait until work has begun. Raises EOFError if the process ends before."""
        self._receiver.recv_bytes()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def kill(self) -> bool:
        """Send SIGKILL, and return whether the process was still at work."""
        self._process.kill()
        return self.join() == -signal.SIGKILL

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def join(self, seconds: float = 120) -> int:
        """Wait for the end; return the exit code or the negative number of the fatal signal."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"the process did not end in {seconds} s")
        self._receiver.close()
        return self._process.exitcode


class BeginSignal(NoProgress):
    """Reports that work begins: just before the model is loaded."""

    def __init__(self, begun: Begun) -> None:
        """Call `begun` when work begins."""
        self._begun = begun

    def add_existing(self, images: int) -> None:  # noqa: ARG002  # how many does not matter here
        """Report that work begins."""
        self._begun()


def make_shard(begun: Begun, uri: str, number: int) -> None:
    """Make a shard of a run."""
    from imagekiln.steps.generate.start import generate

    generate(uri, number, BeginSignal(begun))


def make_little_of_shard(begun: Begun, uri: str, number: int) -> None:
    """Make two parts of a shard, then wait to be killed, however slow the killer is."""
    from imagekiln.steps.generate.start import generate

    class Waiting(BeginSignal):
        batches = 0

        def add_drawn(self, images: int) -> None:  # noqa: ARG002  # a batch is a part here
            self.batches += 1
            if self.batches == 2:
                signal.pause()

    generate(uri, number, Waiting(begun))


def make_plan(begun: Begun, job: Job) -> None:
    """Plan a job."""
    from imagekiln.steps.plan import step as planning

    begun()
    planning.make_plan(job)


def create(begun: Begun, uri: str, key: str, size: int) -> None:
    """Create an object of `size` bytes."""
    from imagekiln.steps.storage import open_store

    store, content = open_store(uri), bytes(size)
    store.exists(key)  # connects
    begun()
    store.create(key, content)


def command(begun: Begun, *arguments: str) -> None:
    """Run a command of the command line, with its exit code. It has begun when a batch is drawn."""
    from imagekiln.steps.runtime import progress
    from imagekiln.workflows.cli.main import main

    class Lines(progress.JsonLinesProgress):
        def add_drawn(self, images: int) -> None:
            super().add_drawn(images)
            begun()

    progress.JsonLinesProgress = Lines  # type: ignore[misc]  # nothing of this is to be seen from outside
    main(arguments)


@cache
def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _run(
    environment: Mapping[str, str],
    says: Connection,
    work: Callable[..., None],
    arguments: tuple[object, ...],
) -> None:
    gc.freeze()  # spares every later collection the imported libraries
    os.environ.clear()
    os.environ.update(environment)
    tqdm.set_lock(threading.RLock())  # its own is shared by processes, and would outlive this one
    work(partial(says.send_bytes, b"begun"), *arguments)
