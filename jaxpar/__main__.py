"""`python -m jaxpar` is `jaxpar`."""

from ._cli import main

main()
