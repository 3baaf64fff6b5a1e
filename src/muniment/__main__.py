"""Run the command line as `python -m muniment`."""

from muniment.cli.entry import main

main()
