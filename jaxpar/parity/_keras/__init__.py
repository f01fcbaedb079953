"""Keras 3 models on JAX as the side that is compared with torch.

`model` makes an NNX module of a Keras model, and `calls` intercepts the calls of its layers.
"""
