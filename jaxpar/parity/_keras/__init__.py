"""Keras 3 models on JAX as the side that is compared with torch."""
