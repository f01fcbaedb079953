"""Names of torch that are not called: types, numbers, annotations; and calls that compute nothing."""

NAMES = {
    "torch.Tensor": "jax.Array",
    "torch.FloatTensor": "jax.Array",
    "torch.LongTensor": "jax.Array",
    "torch.BoolTensor": "jax.Array",
    "torch.nn.Module": "nnx.Module",
    "torch.nn.Parameter": "nnx.Param",
    "torch.Size": "tuple",
    "torch.float32": "jnp.float32",
    "torch.float64": "jnp.float64",
    "torch.float16": "jnp.float16",
    "torch.bfloat16": "jnp.bfloat16",
    # `int` and not jnp.int64, which JAX truncates to 32 bits, with a warning, unless x64 is enabled.
    "torch.long": "int",
    "torch.int8": "jnp.int8",
    "torch.int16": "jnp.int16",
    "torch.int64": "int",
    "torch.int32": "jnp.int32",
    "torch.uint8": "jnp.uint8",
    "torch.bool": "bool",
    "torch.dtype": "jnp.dtype",
    "torch.inf": "jnp.inf",
    "torch.pi": "jnp.pi",
    "torch.relu": "nnx.relu",
    "torch.tanh": "nnx.tanh",
    "torch.sigmoid": "nnx.sigmoid",
    "torch.nn.functional.relu": "nnx.relu",
    # Not nnx.gelu, whose default is the tanh approximation; torch's is exact.
    "torch.nn.functional.gelu": "F.gelu",
    "torch.nn.functional.silu": "nnx.silu",
    "torch.nn.functional.elu": "nnx.elu",
    "torch.nn.functional.sigmoid": "nnx.sigmoid",
    "torch.nn.functional.tanh": "nnx.tanh",
    "torch.nn.functional.leaky_relu": "F.leaky_relu",
}
"""The counterparts of torch's names where they are passed on, assigned or part of an annotation."""

ATTRIBUTES = ("shape", "dtype", "device", "ndim", "T", "mT", "real", "imag", "itemsize", "nbytes")
"""Attributes of tensors that arrays have as well."""

SILENT = (
    "torch.nn.init.",
    "torch.nn.modules.rnn.RNNBase.flatten_parameters",
    "torch._C._log_api_usage_once",
    "torchvision.utils._log_api_usage_once",
)
"""Calls whose statement has no counterpart: initial values come with torch's weights."""

MODULES = {"torch.nn": "nn", "torch.nn.functional": "F"}
"""Modules of torch with a counterpart in jaxpar for their attributes: `getattr(nn, name)`."""

CONTEXTS = ("torch.autocast", "torch.amp.autocast_mode.autocast", "torch.cuda.amp.autocast")
"""Contexts that mean nothing at one precision; only their bodies are written."""
