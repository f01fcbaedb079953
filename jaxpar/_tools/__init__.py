"""What the commands do: each word of the command line that is more than a call of the library."""
