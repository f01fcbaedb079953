"""The implementation of commands that are more than one call of the library."""
