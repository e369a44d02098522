"""The command line, as the script `imagekiln` and as `python -m imagekiln`.

A request to stop while its modules are still imported ends in a sentence too.
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from imagekiln.workflows.cli.main import main as run_command

        run_command()
    except KeyboardInterrupt:  # of the start: later, the command line has a handler of its own
        sys.stderr.write("Stopped. Run the same command again.\n")
        sys.exit(75)


if __name__ == "__main__":
    main()
