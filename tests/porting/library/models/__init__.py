"""The models of the library."""
