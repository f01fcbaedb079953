"""The command line. `main` has the commands; the other files read what users write for one of them."""
