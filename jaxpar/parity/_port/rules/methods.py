"""Methods of a tensor. `{self}` is the tensor."""

from .rule import table

METHODS = table("""
    size() -> {self:a}.shape
    size(dim) -> {self:a}.shape[{dim}]
    dim|ndimension() -> {self:a}.ndim
    numel|nelement() -> {self:a}.size
    view|reshape(*shape) -> {self:a}.reshape({shape})
    view_as|reshape_as(other) -> {self:a}.reshape({other:a}.shape)
    flatten(start_dim=, end_dim=) -> F.flatten({self}<, {start_dim}><, {end_dim}>)
    unflatten(dim, sizes) -> F.unflatten({self}, {dim}, {sizes})
    permute(*dims) -> {self:a}.transpose({dims})
    transpose(dim0, dim1) -> {self:a}.swapaxes({dim0}, {dim1})
    swapaxes(axis0, axis1) -> {self:a}.swapaxes({axis0}, {axis1})
    movedim(source, destination) -> jnp.moveaxis({self}, {source:t}, {destination:t})
    t() -> {self:a}.T
    contiguous|clone(memory_format?) -> {self}
    detach() -> jax.lax.stop_gradient({self})
    requires_grad_(requires_grad?) -> {self}
    unsqueeze(dim) -> jnp.expand_dims({self}, {dim})
    squeeze(dim=) -> F.squeeze({self}<, {dim:t}>)
    expand(*sizes) -> F.expand({self}, {sizes})
    expand_as(other) -> jnp.broadcast_to({self}, {other:a}.shape)
    broadcast_to(size) -> jnp.broadcast_to({self}, {size})
    repeat(*sizes) -> jnp.tile({self}, {sizes:t})
    tile(*dims) -> jnp.tile({self}, {dims:t})
    repeat_interleave(repeats, dim=) -> jnp.repeat({self}, {repeats}<, {dim}>)
    split(split_size, dim=) -> F.split({self}, {split_size}<, {dim}>)
    chunk(chunks, dim=) -> F.chunk({self}, {chunks}<, {dim}>)
    tensor_split(sections, dim=) -> jnp.array_split({self}, {sections}<, axis={dim}>)
    tensor_split(indices, dim=) -> jnp.array_split({self}, {indices}<, axis={dim}>)
    unbind() -> jnp.unstack({self})
    unbind(dim) -> jnp.unstack({self}, axis={dim})
    roll(shifts, dims) -> jnp.roll({self}, {shifts:t}, {dims:t})
    flip(*dims) -> jnp.flip({self}, {dims:t})
    tril|triu(diagonal=) -> jnp.{}({self}<, {diagonal}>)
    diagonal(offset=, dim1=, dim2=) -> {self:a}.diagonal(<{offset}><, {dim1}><, {dim2}>)
    gather(dim, index) -> jnp.take_along_axis({self}, {index}, {dim})
    index_select(dim, index) -> jnp.take({self}, {index}, {dim})
    masked_fill(mask, value) -> jnp.where({mask}, {value}, {self})
    type_as(other) -> {self:a}.astype({other:a}.dtype)
    float() -> {self:a}.astype(jnp.float32)
    double() -> {self:a}.astype(jnp.float64)
    half() -> {self:a}.astype(jnp.float16)
    bfloat16() -> {self:a}.astype(jnp.bfloat16)
    long() -> {self:a}.astype(int)
    int() -> {self:a}.astype(jnp.int32)
    bool() -> {self:a}.astype(bool)
    bernoulli_(p) -> {rngs}.bernoulli({p}, {self:a}.shape).astype({self:a}.dtype)
    new_empty(*size, dtype=, device?) -> jnp.zeros({size:t}, {self:a}.dtype)
    new_zeros(*size, device?) -> jnp.zeros({size:t}, {self:a}.dtype)
    new_ones(*size, device?) -> jnp.ones({size:t}, {self:a}.dtype)
    new_full(size, fill_value, device?) -> jnp.full({size}, {fill_value}, {self:a}.dtype)
    mean|sum|prod|max|min() -> {self:a}.{}()
    mean|sum(dim, keepdim=) -> {self:a}.{}({dim:t}<, keepdims={keepdim}>)
    prod(dim, keepdim=) -> {self:a}.prod({dim}<, keepdims={keepdim}>)
    var|std() -> {self:a}.{}(ddof=1)
    var|std(dim) -> {self:a}.{}({dim:t}, ddof=1)
    var|std(dim, unbiased, keepdim=) -> {self:a}.{}({dim:t}, ddof={unbiased:n}<, keepdims={keepdim}>)
    var|std(dim, keepdim) -> {self:a}.{}({dim:t}, ddof=1, keepdims={keepdim})
    var|std(dim, correction, keepdim=) -> {self:a}.{}({dim:t}, ddof={correction}<, keepdims={keepdim}>)
    amax(dim, keepdim=) -> {self:a}.max({dim:t}<, keepdims={keepdim}>)
    amin(dim, keepdim=) -> {self:a}.min({dim:t}<, keepdims={keepdim}>)
    all|any(dim=, keepdim=) -> {self:a}.{}(<{dim:t}><, keepdims={keepdim}>)
    argmax|argmin(dim=, keepdim=) -> jnp.{}({self}<, {dim}><, keepdims={keepdim}>)
    logsumexp(dim, keepdim=) -> jax.nn.logsumexp({self}, {dim:t}<, keepdims={keepdim}>)
    cumsum|cumprod(dim) -> {self:a}.{}({dim})
    softmax|log_softmax(dim) -> nnx.{}({self}, {dim})
    relu|sigmoid|tanh() -> nnx.{}({self})
    exp|expm1|log|log1p|log2|sin|cos|tan|sinh|cosh|abs|sign|sqrt|square() -> jnp.{}({self})
    floor|ceil|round|trunc|logical_not|isinf|isnan|isfinite|nan_to_num() -> jnp.{}({self})
    atan() -> jnp.arctan({self})
    rsqrt|erf() -> jax.lax.{}({self})
    reciprocal() -> 1 / {self:a}
    neg() -> -{self:a}
    pow(exponent) -> {self:a} ** {exponent:a}
    clamp|clip(min=, max=) -> jnp.clip({self}<, {min}><, max={max}>)
    clamp_min(min) -> jnp.maximum({self}, {min})
    clamp_max(max) -> jnp.minimum({self}, {max})
    add(other) -> {self:a} + {other:a}
    add(other, alpha) -> {self:a} + {alpha:a} * {other:a}
    sub(other) -> {self:a} - {other:a}
    sub(other, alpha) -> {self:a} - {alpha:a} * {other:a}
    mul(other) -> {self:a} * {other:a}
    div(other) -> {self:a} / {other:a}
    matmul|mm|bmm|dot(other) -> {self:a} @ {other:a}
    mv(vec) -> {self:a} @ {vec:a}
    maximum|minimum|logical_and|logical_or|fmod|remainder(other) -> jnp.{}({self}, {other})
    eq(other) -> {self:a} == {other:a}
    ne(other) -> {self:a} != {other:a}
    lt(other) -> {self:a} < {other:a}
    le(other) -> {self:a} <= {other:a}
    gt(other) -> {self:a} > {other:a}
    ge(other) -> {self:a} >= {other:a}
    bitwise_xor(other) -> {self:a} ^ {other:a}
    argsort(dim=, descending=) -> jnp.argsort({self}<, axis={dim}><, descending={descending}>)
    scatter(dim, index, src) -> jnp.put_along_axis({self}, {index}, {src}, {dim}, inplace=False)
    scatter(dim, index, value) -> jnp.put_along_axis({self}, {index}, {value}, {dim}, inplace=False)
    fill(value) -> jnp.full_like({self}, {value})
    zero() -> jnp.zeros_like({self})
    index_add(dim==0, index, source) -> {self:a}.at[{index}].add({source})
    index_add(dim==1, index, source) -> {self:a}.at[:, {index}].add({source})
    index_add(dim==-1, index, source) -> {self:a}.at[..., {index}].add({source})
    norm(p==2?, dim, keepdim=) -> \
        jnp.linalg.norm({self}, axis={dim:t}<, keepdims={keepdim}>)  # gradient NaN at 0
    norm(p, dim, keepdim=) -> jnp.linalg.norm({self}, {p}, {dim}<, keepdims={keepdim}>)  # gradient NaN at 0
    norm(p==2?) -> jnp.linalg.norm({self:a}.reshape(-1))  # gradient NaN at 0
    cpu() -> {self}
    cuda(device?) -> {self}
    is_floating_point() -> jnp.issubdtype({self:a}.dtype, jnp.floating)
""")
_TIES = "where several are largest, torch gives the gradient to one of them, and JAX a part to each"
PAIRS = table(f"""
    max.values(dim, keepdim=) -> {{self:a}}.max({{dim}}<, keepdims={{keepdim}}>)  # {_TIES}
    max.indices(dim, keepdim=) -> {{self:a}}.argmax({{dim}}<, keepdims={{keepdim}}>)
    min.values(dim, keepdim=) -> {{self:a}}.min({{dim}}<, keepdims={{keepdim}}>)  # {_TIES}
    min.indices(dim, keepdim=) -> {{self:a}}.argmin({{dim}}<, keepdims={{keepdim}}>)
    sort.values(dim=, descending=) -> jnp.sort({{self}}<, axis={{dim}}><, descending={{descending}}>)
    sort.indices(dim=, descending=) -> jnp.argsort({{self}}<, axis={{dim}}><, descending={{descending}}>)
    topk.values(k, dim?, sorted?) -> jax.lax.top_k({{self}}, {{k}})[0]
    topk.indices(k, dim?, sorted?) -> jax.lax.top_k({{self}}, {{k}})[1]
""")
"""Calls that return values and indices."""
# JAX's arrays are immutable, so `x.add_(y)` is written as an assignment of the method without `_`.
_CHANGING = (
    *("add", "sub", "mul", "div", "pow", "clamp", "relu", "sigmoid", "tanh", "exp", "sqrt", "neg"),
    *("fill", "zero", "masked_fill", "index_add", "scatter", "unsqueeze", "squeeze", "transpose"),
)
IN_PLACE = {f"{name}_": name for name in _CHANGING}
"""Methods that change their tensor, with the methods that return the changed one."""
INITIAL = ("normal_", "uniform_", "trunc_normal_")  # Methods that draw a tensor's initial values
