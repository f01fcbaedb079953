"""Training: a torch optimizer and its scheduler become lines of `jaxpar.optim`; `steps` proves them."""
