"""Module: Flax's, under the name that torch's layers have it."""

from flax.nnx import Module as Module
