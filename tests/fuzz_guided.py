"""Fuzzing guided by coverage: a file that reaches new code of ours is mutated further.

    .venv/bin/uv pip install --python .venv/bin/python atheris
    python -m tests.fuzz_guided job --runs 100000 --corpus build/corpus

The readers, and how a file may end, are those of `tests.fuzz`. It begins with files that
`tests.mutations` makes. A file that ends as none may is left beside the corpus, with the traceback
on the terminal; libFuzzer ends the process then, and after `--runs` files.
"""

import argparse
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["imagekiln"]):
    from imagekiln.steps.runtime.machine import silence_libraries
    from tests import fuzz

BEGINNINGS = 200  # files that the corpus begins with
MAX_FILE_BYTES = 16_384
MAX_MEMORY_MIB = 4096
UNPLANNED = 1  # a number of a case of which no plan is made


def main() -> None:
    """Read files of a kind until one ends as none may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=fuzz.READERS)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, required=True, help="a folder; it grows")
    options = parser.parse_args()
    silence_libraries()

    corpus = options.corpus / options.kind
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(BEGINNINGS):
        path = fuzz.case_file(options.kind, options.seed, number, corpus)
        path.rename(corpus / f"beginning-{number}")

    path = options.corpus / f"case.{fuzz.SUFFIXES.get(options.kind, options.kind)}"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        fuzz.read_case(options.kind, path, UNPLANNED)

    limits = [
        f"-runs={options.runs}",
        f"-seed={options.seed}",
        f"-max_len={MAX_FILE_BYTES}",
        f"-timeout={fuzz.CASE_CPU_SECONDS * 5}",
        f"-rss_limit_mb={MAX_MEMORY_MIB}",
        f"-artifact_prefix={options.corpus}/{options.kind}-",
    ]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
