"""How long a process took to its first step."""

import subprocess
import sys
import time

import pytest

from imagekiln.steps.runs.start_times import StartClock, StartSeconds, format_start


def test_phases_are_timed_one_after_another() -> None:
    started = time.perf_counter()
    clock = StartClock(age=2.0)
    with clock.phase("imports"):
        time.sleep(0.01)
    with clock.phase("load"):
        time.sleep(0.01)
    clock.begin_drawing()
    time.sleep(0.03)
    seconds = clock.end_first_step(compile_seconds=0.01, hash_seconds=0.5)
    elapsed = time.perf_counter() - started
    assert seconds is not None
    assert clock.seconds == seconds
    assert 2.01 <= seconds.imports < seconds.total
    assert seconds.load >= 0.01
    assert (seconds.compile, seconds.hash) == (0.01, 0.5)
    assert seconds.first_step >= 0.02
    assert 0 <= seconds.rest <= elapsed - 0.04, "what passed in phases is not the rest"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_is_timed_from_its_own_start() -> None:
    code = (
        "import time; time.sleep(0.5)\n"
        "from imagekiln.steps.runs.start_times import StartClock\n"
        "clock = StartClock.of_process()\n"
        "clock.begin_drawing()\n"
        "clock.end_first_step(0.0, 0.0)\n"
        "print(clock.seconds.total)\n"
    )
    started = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert 0.45 <= float(output) <= time.perf_counter() - started + 0.05


def test_a_start_reads_as_a_sentence() -> None:
    start = StartSeconds(total=20.0, imports=5.0, load=4.0, compile=1.0, first_step=8.0, hash=6.5)
    assert format_start(start) == (
        "First step after 20 s: imports 5 s, load 4 s, compiling 1 s, first step 8 s, "
        "other 2 s; hashing beside them 6.5 s."
    )
