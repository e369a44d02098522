"""Run two checkouts on the same jobs, and say whether they give the same.

    python -m tests.compare capture CHECKOUT FOLDER     what one checkout gives, into a folder
    python -m tests.compare diff BEFORE AFTER           two such folders; exit 1 if they differ
    python -m tests.compare checkouts BASE [CHECKOUT]   all of it; make compare BASE=... does this

A checkout needs `make install`; it is used only through its command line and the files that it
writes. What both call differently is passed as --rename OLD=NEW, what is not compared as --ignore
NAME: a key, a column, `outer.key`, a column of the table such as messages or report, or file_bytes,
the hash of whole files. `vocabulary.py` holds those that are agreed.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compare import difference
from tests.compare.capture import capture
from tests.compare.scenarios import SCENARIOS
from tests.compare.vocabulary import Vocabulary

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Do what the arguments say; the exit code is 1 where the two are not the same."""
    options = _parser().parse_args()
    vocabulary = Vocabulary.standard(options.rename, options.ignore)
    if options.command == "diff":
        return _diff(options, options.before, options.after, vocabulary)
    if options.command == "capture":
        _capture(options, options.checkout, options.folder, vocabulary)
        return 0
    with tempfile.TemporaryDirectory(prefix="imagekiln-snapshots-") as name:
        before = Path(name) / "before"
        after = Path(name) / "after"
        _capture(options, options.base, before, vocabulary)
        _capture(options, options.checkout, after, vocabulary)
        return _diff(options, before, after, vocabulary)


def _capture(options: argparse.Namespace, checkout: Path, folder: Path, names: Vocabulary) -> None:
    capture(checkout.resolve(), folder, names, only=options.only, workers=options.workers)


def _diff(options: argparse.Namespace, before: Path, after: Path, names: Vocabulary) -> int:
    text, same = difference.compare(before, after, names, only=options.only)
    sys.stdout.write(f"{text}\n")
    return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    common.add_argument("--ignore", action="append", default=[], metavar="NAME")
    names = [scenario.name for scenario in SCENARIOS]
    common.add_argument("--only", action="append", default=[], choices=names, help="a scenario")

    capturing = argparse.ArgumentParser(add_help=False, parents=[common])
    capturing.add_argument("--workers", type=int, default=2, help="scenarios at once")

    parser = argparse.ArgumentParser(
        prog="python -m tests.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("capture", parents=[capturing])
    one.add_argument("checkout", type=Path)
    one.add_argument("folder", type=Path)
    both = commands.add_parser("checkouts", parents=[capturing])
    both.add_argument("base", type=Path)
    both.add_argument("checkout", type=Path, nargs="?", default=ROOT)
    diff = commands.add_parser("diff", parents=[common])
    diff.add_argument("before", type=Path)
    diff.add_argument("after", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
