"""Where and why two models differ; `first.find` is the entrance. Importing this package imports no torch."""
