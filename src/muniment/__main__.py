"""`python -m muniment` is `muniment`."""

from muniment.cli.entry import main

main()
