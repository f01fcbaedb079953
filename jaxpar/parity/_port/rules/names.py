"""Names of torch that are not called: types, numbers, annotations; and calls that compute nothing."""

_TENSORS = ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.BoolTensor")
_TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "uint8")
NAMES = {
    **dict.fromkeys(_TENSORS, "jax.Array"),
    "torch.nn.Module": "nnx.Module",
    "torch.autograd.Function": "nn.Function",
    "torch.nn.Parameter": "nnx.Param",
    "torch.Size": "tuple",
    "torch.is_tensor": "(lambda x: isinstance(x, jax.Array))",
    # `int` and not jnp.int64, which JAX truncates to 32 bits, with a warning, unless x64 is enabled.
    "torch.long": "int",
    "torch.int64": "int",
    "torch.bool": "bool",
    **dict.fromkeys(("torch.cfloat", "torch.complex64"), "jnp.complex64"),
    **dict.fromkeys(("torch.cdouble", "torch.complex128"), "jnp.complex128"),
    **{f"torch.{name}": f"jnp.{name}" for name in (*_TYPES, "dtype", "inf", "pi")},
    **{f"torch.{name}": f"nnx.{name}" for name in ["relu", "tanh", "sigmoid"]},
    **{f"torch.nn.functional.{name}": f"nnx.{name}" for name in ["relu", "silu", "elu", "sigmoid", "tanh"]},
    # Not nnx.gelu, whose default is the tanh approximation; torch's is exact.
    "torch.nn.functional.gelu": "F.gelu",
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

CONTEXTS = (
    *("torch.autocast", "torch.amp.autocast_mode.autocast"),
    *("torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast"),
    *("torch.backends.cuda.sdp_kernel", "torch.nn.attention.sdpa_kernel"),
)
"""Contexts that mean nothing at one precision, or choose a kernel; only their bodies are written."""
