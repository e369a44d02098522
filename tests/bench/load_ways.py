"""`imagekiln generate` with one of the ways to load weights; a child process of `cold.py`.

python -m tests.bench.load_ways RUN "read, not mapped"
"""

import sys

from imagekiln.steps.generate.diffusion.startup import LoadOptions
from imagekiln.steps.generate.start import generate
from imagekiln.steps.runs.start_times import StartClock
from imagekiln.steps.runtime.libraries import silence_libraries
from imagekiln.steps.runtime.progress import JsonLinesProgress
from imagekiln.steps.runtime.signals import Stop

LOAD_WAYS = {
    "as pods do": LoadOptions(),
    "read, not mapped": LoadOptions(mmap=False),
    "straight to the device": LoadOptions(direct=True),
}


def main() -> None:
    """Generate the first shard of the run."""
    uri, way = sys.argv[1:]
    silence_libraries()
    generate(
        uri,
        number=0,
        progress=JsonLinesProgress(sys.stderr, None),
        stop=Stop(),
        process_clock=StartClock.of_process(),
        options=LOAD_WAYS[way],
    )


if __name__ == "__main__":
    main()
