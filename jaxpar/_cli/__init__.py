"""The command line: `main` has the commands, and what a command needs beyond a call has its own file."""
