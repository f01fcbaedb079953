"""The command line: `main` has the commands; a command that is more than one call has a file."""
