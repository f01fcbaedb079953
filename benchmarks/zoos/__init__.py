"""Models of JAX libraries beside the torch models that they follow."""
