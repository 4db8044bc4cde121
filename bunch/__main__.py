"""`python -m bunch`."""

from bunch.command import main

main()
