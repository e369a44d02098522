"""Section `faults`: memory runs out, the device is lost, and the pod is told to stop."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.generate.step import generate
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import open_store
from tests.bench.gpu.faulty_generate import DRAWING_LINE
from tests.bench.gpu.memory_limit import DrawnJob, draw, draw_limited
from tests.bench.gpu.session import Session
from tests.bench.jobs import plan_work
from tests.bench.measure import scratch_folder
from tests.bench.processes import in_child
from tests.bench.starts import ROOT
from tests.bench.work import Work

BATCHES = 6
STEPS = 4
GIB = 2**30
SECONDS_PER_FAULT = 60.0
SIGNAL_TIMEOUT = 60.0
MESSAGE_LINES = 20


def measure_faults(session: Session) -> None:
    """What the program promises of each fault, uncompiled."""
    batch = session.work.batch
    work = replace(
        session.job_work,
        images=BATCHES * batch,
        part=batch,
        steps=STEPS,
        compile=False,
    )
    if session.has_time_for("memory that runs out", 2 * SECONDS_PER_FAULT):
        _exhaust_memory(session, work)
        # Decoded by slices, it is the denoiser that needs the most.
        _exhaust_memory(session, replace(work, vae="slices"))
    if session.has_time_for("a lost device", SECONDS_PER_FAULT):
        _lose_device(session, work)
    if session.has_time_for("a request to stop", SECONDS_PER_FAULT):
        _stop(session, replace(work, part=2 * batch))


def _exhaust_memory(session: Session, work: Work) -> None:
    """Half the memory that batches need beyond half of a batch: fewer at once, the same bytes."""
    half = in_child(draw, replace(work, batch=work.batch // 2))
    whole = in_child(draw, work)
    limit = (half.peak_bytes + whole.peak_bytes) // 2
    limited, later = in_child(draw_limited, work, limit)
    reference = half
    if limited.mode != half.mode:
        reference = in_child(draw, _planned_like(work, limited))

    limit_gib = limit / GIB
    whole_gib = whole.peak_bytes / GIB
    session.report.note(
        f"faults: with {limit_gib:.2f} GiB instead of {whole_gib:.2f}, batches "
        f"of {limited.batch} instead of {work.batch}, decoded in mode {limited.decode_mode!r}."
    )
    figure = partial(session.report.figure, vae=work.vae)
    figure("faults.memory_ran_out", limited.mode != whole.mode)
    figure("faults.memory_images_ok", 100 * limited.ok / work.images, "%")
    equal = limited.count_equal(reference)
    figure("faults.memory_equal_bytes", 100 * equal / work.images, "% of planned smaller")
    figure("faults.memory_speed_after", later.rate / whole.rate, "x")


def _planned_like(work: Work, limited: DrawnJob) -> Work:
    """The work as planned for the batches and the decoding that memory allowed in the end."""
    planned = replace(work, batch=limited.batch)
    if limited.decode_mode == "whole":
        return planned
    return replace(planned, vae=limited.decode_mode)


def _lose_device(session: Session, work: Work) -> None:
    """An index out of range on the device in the second batch."""
    report = session.report
    with scratch_folder() as folder:
        uri = in_child(plan_work, work, folder)
        child = _generate(uri, "lost")
        _, errors = child.communicate()
        committed = BATCHES - _count_missing_parts(uri)
        report.figure("faults.lost_exit_code", child.returncode)
        report.note(f"faults: the lost device says: {_last_line(errors)}")
        report.figure("faults.lost_committed", committed, "parts")
        summary = in_child(resume, uri)
    failed = summary.statuses.get("failed", 0)
    ok_percent = 100 * summary.ok / work.images
    report.figure("faults.lost_failed_rows", failed, "images")
    report.figure("faults.lost_resumed", ok_percent, "% ok")


def resume(uri: str) -> Summary:
    """Make what is missing of a run, and aggregate it."""
    generate(uri, 0)
    return aggregate(uri)


def _count_missing_parts(uri: str) -> int:
    store = open_store(uri)
    plan = load_plan(store)
    parts = read_shard(store, plan, 0)
    missing = list(missing_parts(store, parts))
    return len(missing)


def _stop(session: Session, work: Work) -> None:
    """SIGTERM in the middle of the second batch, beside which texts are encoded on CUDA."""
    with scratch_folder() as folder:
        uri = in_child(plan_work, work, folder)
        child = _generate(uri, "announce")
        _wait_until_drawing(child)
        child.send_signal(signal.SIGTERM)
        signaled = time.monotonic()
        _, errors = child.communicate(timeout=SIGNAL_TIMEOUT)
        seconds = time.monotonic() - signaled
    session.report.figure("faults.stop_exit_code", child.returncode)
    session.report.figure("faults.stop_seconds", seconds, "s")
    session.report.note(f"faults: the stopped process says: {_last_line(errors)}")


def _generate(uri: str, fault: str) -> subprocess.Popen[str]:
    arguments = ["-m", "tests.bench.gpu.faulty_generate", fault, uri]
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_until_drawing(child: subprocess.Popen[str]) -> None:
    lines: list[str] = []
    for line in child.stderr or ():
        if line.strip() == DRAWING_LINE:
            return
        lines.append(line)
    message = "".join(lines[-MESSAGE_LINES:])
    raise RuntimeError(f"the process ended before it drew:\n{message}")


def _last_line(errors: str) -> str:
    lines = errors.strip().splitlines()
    return lines[-1]
