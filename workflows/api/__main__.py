"""`python -m imagekiln`: the command line, whatever folder its script was installed to."""

from imagekiln.workflows.cli.main import main

if __name__ == "__main__":
    main()
