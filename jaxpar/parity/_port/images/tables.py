"""Tables: torch's functions, methods and layers by what they do with the axes of an image."""

ELEMENTWISE = frozenset(
    (
        *("abs", "add", "sub", "mul", "div", "pow", "neg", "exp", "log", "log1p", "sqrt", "rsqrt", "square"),
        *("reciprocal", "erf", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "sigmoid", "sign"),
        *("relu", "relu6", "silu", "gelu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish"),
        *("hardsigmoid", "softplus", "softsign", "mish", "logsigmoid", "softshrink", "hardshrink"),
        *("tanhshrink", "threshold", "clamp", "clamp_min", "clamp_max", "clip", "round", "floor", "ceil"),
        *("trunc", "fmod", "remainder", "maximum", "minimum", "where", "lerp", "masked_fill", "eq", "ne"),
        *("lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "bitwise_xor", "isinf"),
        *("isnan", "isfinite", "nan_to_num", "float", "double", "half", "bfloat16", "long", "int", "bool"),
        *("to", "type", "type_as", "contiguous", "clone", "detach", "cpu", "cuda", "requires_grad_"),
        *("dropout", "zeros_like", "ones_like", "full_like", "fill", "zero", "expand_as", "annotate"),
        *("bernoulli",),
    )
)
"""Functions and methods of each element: the order of the axes does not matter."""
IMAGES = frozenset(
    (
        *("conv2d", "conv_transpose2d", "max_pool2d", "avg_pool2d", "lp_pool2d", "adaptive_avg_pool2d"),
        *("adaptive_max_pool2d", "interpolate", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
        *(
            "group_norm",
            "batch_norm",
            "instance_norm",
            "local_response_norm",
            "grid_sample",
            "prelu",
            "fold",
            "max_unpool2d",
            "unfold",
        ),
    )
)
"""Functions of images in jaxpar.nn.channels_last."""
ALONG = {
    **dict.fromkeys(("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp", "prod"), 1),
    **dict.fromkeys(("argmax", "argmin", "all", "any", "softmax", "log_softmax", "cumsum", "cumprod"), 1),
    **dict.fromkeys(("cat", "concat", "flip", "glu", "index_select"), 1),
    **dict.fromkeys(
        (
            "norm",
            "roll",
            "chunk",
            "split",
            "split_with_sizes",
            "tensor_split",
            "repeat_interleave",
            "normalize",
        ),
        2,
    ),
}
"""Functions along axes, with the position of the argument that names the axes."""
# The first axis is N in both orders, so without an argument nothing changes.
ROWS = frozenset(("cat", "concat", "chunk", "split", "split_with_sizes", "tensor_split"))
"""Functions along the first axis by default."""
REDUCING = frozenset(
    (
        *("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp", "prod", "norm"),
        *("argmax", "argmin", "all", "any"),
    )
)
"""Functions that remove the axes, without `keepdim`."""
LAYOUT_FREE = frozenset(
    (
        *("dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_contiguous"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "get_device"),
        *("dtype", "device", "ndim", "is_cuda", "requires_grad", "layout", "itemsize", "nbytes"),
    )
)
"""Methods and attributes whose result does not depend on the order of the axes."""
BUILTINS = frozenset((isinstance, issubclass, len, print, type, id, hasattr, callable, repr, str))
"""Functions of Python that accept images in any order of axes."""

IMAGE_LAYERS = frozenset(
    (
        *("Conv2d", "ConvTranspose2d", "BatchNorm2d", "InstanceNorm2d", "GroupNorm", "LocalResponseNorm"),
        *("MaxPool2d", "AvgPool2d", "LPPool2d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "Dropout2d"),
        *("ConstantPad2d", "ZeroPad2d", "ReflectionPad2d", "ReplicationPad2d", "CircularPad2d", "PReLU"),
        *("Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d", "PixelShuffle", "PixelUnshuffle"),
        *("MaxUnpool2d", "FeatureAlphaDropout", "Softmax2d"),
        *("ChannelShuffle", "Unfold", "Fold", "Flatten", "Unflatten"),
        *("_BatchNorm", "_InstanceNorm", "_ConstantPadNd", "_ReflectionPadNd", "_ReplicationPadNd"),
    )
)
"""Layers of images in channels_last, and the base classes that define their `forward`."""
ELEMENTWISE_LAYERS = frozenset(
    (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Sigmoid"),
        *("LogSigmoid", "Tanh", "Hardtanh", "Hardsigmoid", "Hardswish", "Hardshrink", "Softsign"),
        *("Softplus", "Softshrink", "Tanhshrink", "Threshold", "Identity", "Dropout", "AlphaDropout"),
        *("RReLU",),
    )
)
CONTAINERS = frozenset(("Sequential", "ModuleList", "ModuleDict"))  # Layers that pass images on
