"""Section `faults`: memory runs out, the device is lost, and the pod is told to stop."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.generate.start import generate
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import open_store
from tests.bench.gpu.cold import plan_job
from tests.bench.gpu.faulty_generate import DRAWING_LINE
from tests.bench.gpu.memory_limit import Drawn, draw, draw_limited
from tests.bench.gpu.session import Session, scratch_folder
from tests.bench.processes import in_child
from tests.bench.work import Work

ROOT = Path(__file__).parents[3]
BATCHES = 6
STEPS = 4
SECONDS_PER_FAULT = 60.0
SIGNAL_TIMEOUT = 60.0


def measure_faults(session: Session) -> None:
    """What the program promises of each fault, uncompiled."""
    batch = session.work.batch
    work = replace(session.job_work, images=BATCHES * batch, part=batch, steps=STEPS, compile=False)
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
    limited, after = in_child(draw_limited, work, limit)
    session.report.note(
        f"faults: with {limit / 2**30:.2f} GiB instead of {whole.peak_bytes / 2**30:.2f}, batches "
        f"of {limited.batch} instead of {work.batch}, decoded in mode {limited.decode_mode!r}."
    )
    reference = half if _is_like(limited, half) else in_child(draw, _planned_like(work, limited))
    report = session.report
    ran_out = not _is_like(limited, whole)
    report.figure("faults.memory_ran_out", ran_out, vae=work.vae)
    report.figure("faults.memory_images_ok", 100 * limited.ok / work.images, "%", vae=work.vae)
    equal = sum(limited.digests[seed] == reference.digests[seed] for seed in limited.digests)
    share = 100 * equal / work.images
    report.figure("faults.memory_equal_bytes", share, "% of planned smaller", vae=work.vae)
    report.figure("faults.memory_speed_after", after.rate / whole.rate, "x", vae=work.vae)


def _is_like(limited: Drawn, reference: Drawn) -> bool:
    shape = (limited.batch, limited.decode_mode)
    return shape == (reference.batch, reference.decode_mode)


def _planned_like(work: Work, limited: Drawn) -> Work:
    """The work as planned for what was left in the end."""
    vae = work.vae if limited.decode_mode == "whole" else limited.decode_mode
    return replace(work, batch=limited.batch, vae=vae)


def _lose_device(session: Session, work: Work) -> None:
    """An index out of range on the device in the second batch."""
    with scratch_folder() as folder:
        uri = in_child(plan_job, work, folder, range(work.images))
        child = _generate(uri, "lost")
        _, errors = child.communicate()
        committed = BATCHES - len(_missing(uri))
        session.report.figure("faults.lost_exit_code", child.returncode)
        session.report.note(f"faults: the lost device says: {errors.strip().splitlines()[-1]}")
        session.report.figure("faults.lost_committed", committed, "parts")
        summary = in_child(resume, uri)
    session.report.figure("faults.lost_failed_rows", summary.statuses.get("failed", 0), "images")
    session.report.figure("faults.lost_resumed", 100 * summary.ok / work.images, "% ok")


def _stop(session: Session, work: Work) -> None:
    """SIGTERM in the middle of the second batch, beside which texts are encoded on CUDA."""
    with scratch_folder() as folder:
        uri = in_child(plan_job, work, folder, range(work.images))
        child = _generate(uri, "announce")
        _wait_until_drawing(child)
        child.send_signal(signal.SIGTERM)
        signaled = time.monotonic()
        _, errors = child.communicate(timeout=SIGNAL_TIMEOUT)
        seconds = time.monotonic() - signaled
    session.report.figure("faults.stop_exit_code", child.returncode)
    session.report.figure("faults.stop_seconds", seconds, "s")
    session.report.note(f"faults: the stopped process says: {errors.strip().splitlines()[-1]}")


def resume(uri: str) -> Summary:
    """Make what is missing of a run, and aggregate it."""
    generate(uri, 0)
    return aggregate(uri)


def _missing(uri: str) -> list[Part]:
    store = open_store(uri)
    return list(missing_parts(store, read_shard(store, load_plan(store), 0)))


def _generate(uri: str, fault: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.gpu.faulty_generate", fault, uri]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def _wait_until_drawing(child: subprocess.Popen[str]) -> None:
    lines: list[str] = []
    for line in child.stderr or ():
        if line.strip() == DRAWING_LINE:
            return
        lines.append(line)
    raise RuntimeError(f"the process ended before it drew:\n{''.join(lines[-20:])}")
