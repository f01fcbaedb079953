"""`python -m jaxpar` is `jaxpar`."""

from ._cli.main import main

main()
