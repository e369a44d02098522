"""Entry point of the command line, for the script `imagekiln` and `python -m imagekiln`.

A request to stop during the import of its modules also ends with a message.
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from imagekiln.workflows.cli.main import main as run_command

        run_command()
    except KeyboardInterrupt:  # only at startup: later, the command line has its own handler
        sys.stderr.write("Stopped. Run the same command again.\n")
        sys.exit(75)


if __name__ == "__main__":
    main()
