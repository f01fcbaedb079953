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
    unfold(dimension, size, step) -> F.sliding_windows({self}, {dimension}, {size}, {step})
    permute(*dims) -> {self:a}.transpose({dims})
    transpose|swapdims(dim0, dim1) -> {self:a}.swapaxes({dim0}, {dim1})
    transpose|swapdims(*dims) -> {self:a}.swapaxes({dims})
    swapaxes(axis0, axis1) -> {self:a}.swapaxes({axis0}, {axis1})
    movedim|moveaxis(source, destination) -> jnp.moveaxis({self}, {source:t}, {destination:t})
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
    repeat_interleave(repeats, dim=, output_size?) -> jnp.repeat({self}, {repeats}<, {dim}>)
    split_with_sizes(split_sizes, dim=) -> F.split({self}, {split_sizes}<, {dim}>)
    split(split_size, dim=) -> F.split({self}, {split_size}<, {dim}>)
    chunk(chunks, dim=) -> F.chunk({self}, {chunks}<, {dim}>)
    tensor_split(sections, dim=) -> jnp.array_split({self}, {sections}<, axis={dim}>)
    tensor_split(indices, dim=) -> jnp.array_split({self}, {indices}<, axis={dim}>)
    unbind() -> jnp.unstack({self})
    unbind(dim) -> jnp.unstack({self}, axis={dim})
    roll(shifts) -> jnp.roll({self}, {shifts})
    roll(shifts, dims) -> jnp.roll({self}, {shifts:t}, {dims:t})
    rot90(k=, dims=) -> jnp.rot90({self}<, {k}><, {dims}>)
    narrow(dim, start, length) -> jax.lax.dynamic_slice_in_dim({self}, {start}, {length}, {dim})
    select(dim==0, index) -> {self:a}[{index}]
    select(dim==1, index) -> {self:a}[:, {index}]
    select(dim==-1, index) -> {self:a}[..., {index}]
    select(dim, index) -> jnp.take({self}, {index}, {dim})
    ravel() -> {self:a}.ravel()
    fliplr|flipud|diagflat() -> jnp.{}({self})
    hsplit|vsplit|dsplit(sections) -> jnp.{}({self}, {sections})
    flip(*dims) -> jnp.flip({self}, {dims:t})
    tril|triu(diagonal=) -> jnp.{}({self}<, {diagonal}>)
    trace() -> jnp.trace({self})
    diag_embed() -> {self:a}[..., None] * jnp.eye({self:a}.shape[-1], dtype={self:a}.dtype)
    diag(diagonal=) -> jnp.diag({self}<, {diagonal}>)
    diagonal(offset=, dim1=, dim2=) -> {self:a}.diagonal(<{offset}><, {dim1}><, {dim2}>)
    gather(dim, index) -> jnp.take_along_axis({self}, {index}, {dim})
    take_along_dim(indices, dim) -> jnp.take_along_axis({self}, {indices}, {dim})
    take(index) -> {self:a}.ravel()[{index}]
    bincount(weights==None?, minlength) -> \
        jnp.bincount({self}, length={minlength})  # torch also counts numbers of minlength and above
    bincount(weights, minlength) -> \
        jnp.bincount({self}, {weights}, length={minlength})  # torch also adds those of minlength and above
    index_select(dim, index) -> jnp.take({self}, {index}, {dim})
    masked_scatter(mask, source) -> jnp.where({mask}, {source:a}.ravel()[ \
        jnp.cumsum(jnp.broadcast_to({mask}, {self:a}.shape)).reshape({self:a}.shape) - 1], {self})
    masked_fill(mask, value) -> jnp.where({mask}, {value}, {self})
    type_as(other) -> {self:a}.astype({other:a}.dtype)
    float() -> {self:a}.astype(jnp.float32)
    double() -> {self:a}.astype(jnp.float64)
    half() -> {self:a}.astype(jnp.float16)
    bfloat16() -> {self:a}.astype(jnp.bfloat16)
    long() -> {self:a}.astype(int)
    int() -> {self:a}.astype(jnp.int32)
    short() -> {self:a}.astype(jnp.int16)
    byte() -> {self:a}.astype(jnp.uint8)
    bool() -> {self:a}.astype(bool)
    bernoulli_(p) -> {rngs}.bernoulli({p}, {self:a}.shape).astype({self:a}.dtype)
    normal_(mean==0?, std==1?) -> {rngs}.normal({self:a}.shape, {self:a}.dtype)
    uniform_() -> {rngs}.uniform({self:a}.shape, {self:a}.dtype)
    new(rows, columns) -> jnp.zeros(({rows}, {columns}), {self:a}.dtype)
    new(first, second, third) -> jnp.zeros(({first}, {second}, {third}), {self:a}.dtype)
    new_empty(*size, dtype=, device?) -> jnp.zeros({size:t}, {self:a}.dtype)
    new_tensor(data, dtype, device?) -> jnp.asarray({data}, {dtype})
    new_tensor(data, device?) -> jnp.asarray({data}, {self:a}.dtype)
    new_zeros(*size, device?) -> jnp.zeros({size:t}, {self:a}.dtype)
    new_ones(*size, device?) -> jnp.ones({size:t}, {self:a}.dtype)
    new_zeros(*size, dtype, device?) -> jnp.zeros({size:t}, {dtype})
    new_ones(*size, dtype, device?) -> jnp.ones({size:t}, {dtype})
    new_full(size, fill_value, dtype, device?) -> jnp.full({size}, {fill_value}, {dtype})
    new_full(size, fill_value, device?) -> jnp.full({size}, {fill_value}, {self:a}.dtype)
    mean|sum|prod|max|min() -> {self:a}.{}()
    mean|sum(dim, keepdim=, dtype) -> {self:a}.{}({dim:t}, dtype={dtype}<, keepdims={keepdim}>)
    mean|sum(dim, keepdim=) -> {self:a}.{}({dim:t}<, keepdims={keepdim}>)
    mean|sum(dtype) -> {self:a}.{}(dtype={dtype})
    nanmean|nansum(dim=, keepdim=) -> jnp.{}({self}<, {dim:t}><, keepdims={keepdim}>)
    count_nonzero(dim=) -> jnp.count_nonzero({self}<, {dim:t}>)
    diff(n==1?, dim=) -> jnp.diff({self}<, axis={dim}>)
    cov|corrcoef() -> jnp.{}({self})
    median() -> F.median({self})
    quantile(q, dim=, keepdim=) -> jnp.quantile({self}, {q}<, {dim}><, keepdims={keepdim}>)
    prod(dim, keepdim=) -> {self:a}.prod({dim}<, keepdims={keepdim}>)
    var() -> {self:a}.var(ddof=1)
    var(dim) -> {self:a}.var({dim:t}, ddof=1)
    var(dim, unbiased, keepdim=) -> {self:a}.var({dim:t}, ddof={unbiased:n}<, keepdims={keepdim}>)
    var(dim, keepdim) -> {self:a}.var({dim:t}, ddof=1, keepdims={keepdim})
    var(dim, correction, keepdim=) -> {self:a}.var({dim:t}, ddof={correction}<, keepdims={keepdim}>)
    var(unbiased) -> {self:a}.var(ddof={unbiased:n})
    std(dim, unbiased, keepdim=) -> F.std({self}, {dim:t}, correction={unbiased:n}<, keepdim={keepdim}>)
    std(dim=, correction=, keepdim=) -> \
        F.std({self}<, {dim:t}><, correction={correction}><, keepdim={keepdim}>)
    std(unbiased) -> F.std({self}, correction={unbiased:n})
    amax(dim=, keepdim=) -> {self:a}.max(<{dim:t}><, keepdims={keepdim}>)
    amin(dim=, keepdim=) -> {self:a}.min(<{dim:t}><, keepdims={keepdim}>)
    all|any(dim=, keepdim=) -> {self:a}.{}(<{dim:t}><, keepdims={keepdim}>)
    argmax|argmin(dim=, keepdim=) -> jnp.{}({self}<, {dim}><, keepdims={keepdim}>)
    logsumexp(dim, keepdim=) -> jax.nn.logsumexp({self}, {dim:t}<, keepdims={keepdim}>)
    logcumsumexp(dim) -> jax.lax.cumlogsumexp({self}, {dim})
    cumsum|cumprod(dim, dtype=) -> {self:a}.{}({dim}<, dtype={dtype}>)
    softmax|log_softmax(dim) -> nnx.{}({self}, {dim})
    softmax|log_softmax(dim, dtype) -> nnx.{}({self:a}.astype({dtype}), {dim})
    relu|sigmoid|tanh() -> nnx.{}({self})
    exp|exp2|expm1|log|log1p|log2|log10|sin|cos|tan|sinh|cosh|sign|sqrt|square|sinc() -> jnp.{}({self})
    arcsin|arccos|arctan|arcsinh|arccosh|arctanh|deg2rad|rad2deg() -> jnp.{}({self})
    abs|absolute() -> F.abs({self})
    real|imag|conj|angle() -> jnp.{}({self})
    adjoint() -> {self:a}.mT.conj()
    floor|ceil|round|trunc|logical_not|isinf|isnan|isfinite() -> jnp.{}({self})
    nan_to_num(nan=, posinf=, neginf=) -> \
        jnp.nan_to_num({self}<, nan={nan}><, posinf={posinf}><, neginf={neginf}>)
    asin|acos|atan|asinh|acosh|atanh() -> jnp.{}({self})
    rsqrt|erf|erfc|lgamma() -> jax.lax.{}({self})
    digamma() -> F.digamma({self})
    erfinv() -> jax.lax.erf_inv({self})
    logit() -> jax.scipy.special.logit({self})
    frac() -> {self:a} - jnp.trunc({self})
    reciprocal() -> 1 / {self:a}
    neg|negative() -> -{self:a}
    positive() -> {self}
    pow(exponent) -> {self:a} ** {exponent:a}
    clamp|clip(min=, max=) -> F.clamp({self}<, {min}><, max={max}>)
    clamp_min(min) -> F.clamp({self}, {min})
    clamp_max(max) -> F.clamp({self}, max={max})
    add(other) -> {self:a} + {other:a}
    add(other, alpha) -> {self:a} + {alpha:a} * {other:a}
    sub|subtract(other) -> {self:a} - {other:a}
    sub(other, alpha) -> {self:a} - {alpha:a} * {other:a}
    mul|multiply(other) -> {self:a} * {other:a}
    div|divide(other, rounding_mode==None?) -> {self:a} / {other:a}
    true_divide(other) -> {self:a} / {other:a}
    div|divide(other, rounding_mode) -> F.div({self}, {other}, rounding_mode={rounding_mode})
    floor_divide(other) -> F.div({self}, {other}, rounding_mode="floor")
    lerp(end, weight) -> {self:a} + {weight:a} * ({end:a} - {self:a})
    addcmul(tensor1, tensor2) -> {self:a} + {tensor1:a} * {tensor2:a}
    addcmul(tensor1, tensor2, value) -> {self:a} + {value:a} * {tensor1:a} * {tensor2:a}
    addcdiv(tensor1, tensor2) -> {self:a} + {tensor1:a} / {tensor2:a}
    addcdiv(tensor1, tensor2, value) -> {self:a} + {value:a} * {tensor1:a} / {tensor2:a}
    matmul|mm|bmm|dot(other) -> {self:a} @ {other:a}
    mv(vec) -> {self:a} @ {vec:a}
    inner|vdot|kron(other) -> jnp.{}({self}, {other})
    addr(vec1, vec2) -> {self:a} + jnp.outer({vec1}, {vec2})
    addbmm(batch1, batch2) -> {self:a} + ({batch1:a} @ {batch2:a}).sum(0)
    matrix_exp() -> jax.scipy.linalg.expm({self})
    matrix_power(n) -> jnp.linalg.matrix_power({self}, {n})
    outer|ger(vec2) -> jnp.outer({self}, {vec2})
    addmm(mat1, mat2, beta, alpha) -> {beta:a} * {self:a} + {alpha:a} * {mat1:a} @ {mat2:a}
    addmm(mat1, mat2) -> {self:a} + {mat1:a} @ {mat2:a}
    baddbmm(batch1, batch2, beta, alpha) -> {beta:a} * {self:a} + {alpha:a} * {batch1:a} @ {batch2:a}
    baddbmm(batch1, batch2) -> {self:a} + {batch1:a} @ {batch2:a}
    addmv(mat, vec) -> {self:a} + {mat:a} @ {vec:a}
    maximum|minimum|logical_and|logical_or|logical_xor(other) -> jnp.{}({self}, {other})
    fmod|remainder|logaddexp|logaddexp2|hypot|isclose(other) -> jnp.{}({self}, {other})
    atan2|arctan2(other) -> F.atan2({self}, {other})
    heaviside(values) -> jnp.heaviside({self}, {values})
    xlogy(other) -> jax.scipy.special.xlogy({self}, {other})
    float_power(exponent) -> jnp.float_power({self}, {exponent})
    dist(other, p=) -> F.norm({self:a} - {other:a}<, {p}>)
    greater_equal(other) -> {self:a} >= {other:a}
    less_equal(other) -> {self:a} <= {other:a}
    not_equal(other) -> {self:a} != {other:a}
    eq(other) -> {self:a} == {other:a}
    ne(other) -> {self:a} != {other:a}
    lt(other) -> {self:a} < {other:a}
    le(other) -> {self:a} <= {other:a}
    gt(other) -> {self:a} > {other:a}
    ge(other) -> {self:a} >= {other:a}
    greater(other) -> {self:a} > {other:a}
    less(other) -> {self:a} < {other:a}
    bitwise_and|bitwise_or|bitwise_xor(other) -> jnp.{}({self}, {other})
    bitwise_not() -> ~{self:a}
    argsort(dim=, descending=) -> jnp.argsort({self}<, axis={dim}><, descending={descending}>)
    scatter|scatter_add(dim, index, src) -> F.{}({self}, {dim}, {index}, {src})
    scatter_reduce(dim, index, src, reduce, include_self=) -> \
        F.scatter_reduce({self}, {dim}, {index}, {src}, {reduce}<, include_self={include_self}>)
    index_copy(dim==0, index, source) -> {self:a}.at[{index}].set({source})
    index_copy(dim==1, index, source) -> {self:a}.at[:, {index}].set({source})
    index_put(indices, values, accumulate==True) -> {self:a}.at[{indices:t}].add({values})
    scatter(dim, index, value) -> F.scatter({self}, {dim}, {index}, {value})
    index_fill(dim==0, index, value) -> {self:a}.at[{index}].set({value})
    index_fill(dim==1, index, value) -> {self:a}.at[:, {index}].set({value})
    fill(value) -> jnp.full_like({self}, {value})
    zero() -> jnp.zeros_like({self})
    index_add(dim==0, index, source) -> {self:a}.at[{index}].add({source})
    index_add(dim==1, index, source) -> {self:a}.at[:, {index}].add({source})
    index_add(dim==-1, index, source) -> {self:a}.at[..., {index}].add({source})
    norm(p=, dim=, keepdim=) -> F.norm({self}<, {p}><, dim={dim:t}><, keepdim={keepdim}>)
    det() -> jnp.linalg.det({self})
    inverse() -> jnp.linalg.inv({self})
    cpu() -> {self}
    cuda(device?) -> {self}
    is_floating_point() -> jnp.issubdtype({self:a}.dtype, jnp.floating)
    is_complex() -> jnp.iscomplexobj({self})
    is_pinned() -> False
    where(condition, other) -> jnp.where({condition}, {self}, {other})
    element_size() -> {self:a}.itemsize
    nonzero(as_tuple==True) -> jnp.nonzero({self})  # its shape depends on data
    nonzero|argwhere(as_tuple==False?) -> jnp.argwhere({self})  # its shape depends on data
    masked_select(mask) -> {self:a}[{mask}]  # its shape depends on data
    unique(sorted==True?, return_inverse=, return_counts=) -> \
        jnp.unique({self}<, return_inverse={return_inverse}><, return_counts={return_counts}>)\
  # its shape depends on data
""")
_TIES = "which of equal values it takes is not defined in torch, and their gradients are exchanged"
PAIRS = table(f"""
    max(dim, keepdim=) -> F.max({{self}}, {{dim}}<, keepdim={{keepdim}}>)
    max.indices(dim, keepdim=) -> {{self:a}}.argmax({{dim}}<, keepdims={{keepdim}}>)
    min(dim, keepdim=) -> F.min({{self}}, {{dim}}<, keepdim={{keepdim}}>)
    min.indices(dim, keepdim=) -> {{self:a}}.argmin({{dim}}<, keepdims={{keepdim}}>)
    sort(dim=, descending=, stable?) -> F.sort({{self}}<, {{dim}}><, descending={{descending}}>)
    sort.values(dim=, descending=, stable?) -> jnp.sort({{self}}<, axis={{dim}}><, descending={{descending}}>)
    sort.indices(dim=, descending=, stable?) -> \
        jnp.argsort({{self}}<, axis={{dim}}><, descending={{descending}}>)
    topk(k, dim=, largest=, sorted?) -> \
        F.topk({{self}}, {{k}}<, dim={{dim}}><, largest={{largest}}>)  # {_TIES}
    cummax(dim) -> F.cummax({{self}}, {{dim}})
    cummin(dim) -> F.cummin({{self}}, {{dim}})
    median(dim, keepdim=) -> F.median({{self}}, {{dim}}<, keepdim={{keepdim}}>)  # {_TIES}
    kthvalue(k, dim=, keepdim=) -> \
        F.kthvalue({{self}}, {{k}}<, dim={{dim}}><, keepdim={{keepdim}}>)  # {_TIES}
    aminmax(dim=, keepdim=) -> F.aminmax({{self}}<, dim={{dim}}><, keepdim={{keepdim}}>)
    slogdet() -> jnp.linalg.slogdet({{self}})
""")
"""Calls that return several arrays by name, and shorter ones for one of them."""
# JAX's arrays are immutable, so `x.add_(y)` is written as an assignment of the method without `_`.
_CHANGING = (
    "add sub mul div pow lerp addcmul addcdiv clamp clamp_min clamp_max abs relu sigmoid tanh exp sqrt neg "
    "fill zero masked_fill index_add index_fill scatter scatter_add "
    "scatter_reduce index_copy index_put unsqueeze squeeze transpose triu tril "
    "round floor ceil reciprocal rsqrt log sin cos detach nan_to_num"
)
IN_PLACE = {f"{name}_": name for name in _CHANGING.split()}
"""Methods that change their tensor, with the methods that return the changed one."""
INITIAL = ("normal_", "uniform_", "trunc_normal_")  # Methods that draw a tensor's initial values
