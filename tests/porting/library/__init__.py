"""A small library with a runtime of its own, built as transformers is."""
