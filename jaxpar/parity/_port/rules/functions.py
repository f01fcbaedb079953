"""Functions of torch and of torch.nn.functional. Those that are also methods, `x.f()`, are in `methods`."""

import ast
import re

from .methods import IN_PLACE, METHODS
from .rule import SHAPE, CallRule, table
from .transformers_names import FUNCTIONS as OF_TRANSFORMERS

# By name rather than by object: a function that a release of torch lacks needs no special case.
# The order of a function's lines matters, because the first one that accepts a call applies.
FUNCTIONS = table("""
    torch.cat|torch.concat|torch.concatenate(tensors, dim=) -> jnp.concatenate({tensors}<, axis={dim}>)
    torch.hstack|torch.vstack|torch.dstack|torch.column_stack(tensors) -> jnp.{}({tensors})
    torch.block_diag(*tensors) -> jax.scipy.linalg.block_diag({tensors})
    torch.broadcast_tensors(*tensors) -> jnp.broadcast_arrays({tensors:s})
    torch.atleast_1d|torch.atleast_2d|torch.atleast_3d(input) -> jnp.{}({input})
    torch.tensordot(a, b, dims) -> jnp.tensordot({a}, {b}, {dims})
    torch.isin(elements, test_elements) -> jnp.isin({elements}, {test_elements})
    torch.trapezoid(y) -> jnp.trapezoid({y})
    torch.promote_types(type1, type2) -> jnp.promote_types({type1}, {type2})
    torch.result_type(tensor1, tensor2) -> jnp.result_type({tensor1}, {tensor2})
    torch.rsub(input, other) -> {other:a} - {input:a}
    torch.stack(tensors, dim=) -> jnp.stack({tensors}<, axis={dim}>)
    torch.where(condition, input, other) -> jnp.where({condition}, {input}, {other})
    torch.where(condition) -> jnp.where({condition})  # its shape depends on data
    torch.einsum(equation, *operands) -> jnp.einsum({equation}, {operands:s})
    torch.max(input, other) -> jnp.maximum({input}, {other})
    torch.min(input, other) -> jnp.minimum({input}, {other})
    torch.zeros|torch.ones(*size, dtype=, device?, requires_grad?) -> jnp.{}({size:t}<, {dtype}>)
    torch.empty(*size, dtype=, device?, requires_grad?) -> jnp.zeros({size:t}<, {dtype}>)
    torch.full(size, fill_value, dtype=, device?) -> jnp.full({size}, {fill_value}<, {dtype}>)
    torch.zeros_like|torch.ones_like(input, dtype=, device?, requires_grad==False?) -> \
        jnp.{}({input}<, {dtype}>)
    torch.empty_like(input, dtype=, device?, memory_format?) -> jnp.zeros_like({input}<, {dtype}>)
    torch.full_like(input, fill_value, dtype=, device?) -> jnp.full_like({input}, {fill_value}<, {dtype}>)
    torch.arange(start, end=, step=, dtype=, device?) -> \
        jnp.arange({start}<, {end}><, {step}><, dtype={dtype}>)
    torch.arange(end, dtype=, device?) -> jnp.arange({end}<, dtype={dtype}>)
    torch.linspace(start, end, steps, dtype=, device?) -> F.linspace({start}, {end}, {steps}<, dtype={dtype}>)
    torch.logspace(start, end, steps, dtype=, device?) -> \
        jnp.logspace({start}, {end}, {steps}<, dtype={dtype}>)
    torch.eye(n, m=, dtype=, device?) -> jnp.eye({n}<, {m}><, dtype={dtype}>)
    torch.tensor(data, dtype=, device?, requires_grad?) -> jnp.array({data}<, {dtype}>)
    torch.from_numpy(ndarray) -> jnp.asarray({ndarray})
    torch.autograd.Variable(data, requires_grad==False?) -> {data}
    torch.hann_window(window_length, periodic==False, device?) -> jnp.hanning({window_length})
    torch.hamming_window(window_length, periodic==False, device?) -> jnp.hamming({window_length})
    torch.blackman_window(window_length, periodic==False, device?) -> jnp.blackman({window_length})
    torch.hann_window(window_length, periodic==True?, device?) -> \
        jnp.hanning({window_length:a} + ({window_length:a} > 1))[:{window_length}]
    torch.hamming_window(window_length, periodic==True?, device?) -> \
        jnp.hamming({window_length:a} + ({window_length:a} > 1))[:{window_length}]
    torch.blackman_window(window_length, periodic==True?, device?) -> \
        jnp.blackman({window_length:a} + ({window_length:a} > 1))[:{window_length}]
    torch.cuda.is_available|torch.backends.mps.is_available() -> False
    torch.device(type, index?) -> None
    torch.broadcast_shapes(*shapes) -> jnp.broadcast_shapes({shapes})
    torch.asarray(obj, dtype=, device?) -> jnp.asarray({obj}<, {dtype}>)
    torch.as_tensor(data, dtype=, device?) -> jnp.asarray({data}<, {dtype}>)
    torch.meshgrid(*tensors, indexing) -> jnp.meshgrid({tensors:s}, indexing={indexing})
    torch.meshgrid(*tensors) -> jnp.meshgrid({tensors:s}, indexing="ij")
    torch.randn(*size, device?, requires_grad?) -> rngs.params.normal({size:t})
    torch.rand(*size, device?, requires_grad?) -> rngs.params.uniform({size:t})
    torch.randn(*size, dtype, device?, requires_grad?) -> rngs.params.normal({size:t}, {dtype})
    torch.rand(*size, dtype==torch.cfloat, device?, requires_grad?) -> \
        jax.lax.complex(rngs.params.uniform({size:t}), rngs.params.uniform({size:t}))
    torch.rand(*size, dtype, device?, requires_grad?) -> rngs.params.uniform({size:t}, {dtype})
    torch.Tensor|torch.FloatTensor|torch.DoubleTensor(*size) -> jnp.zeros({size:t})
    torch.tril_indices|torch.triu_indices(row, col) -> jnp.stack(jnp.{}({row}, 0, {col}))
    torch.tril_indices|torch.triu_indices(row, col, offset) -> jnp.stack(jnp.{}({row}, {offset}, {col}))
    torch.jit.is_scripting|torch.jit.is_tracing|torch._C._are_functorch_transforms_active() -> False
    torch.is_grad_enabled() -> True  # JAX's functions do not know whether they are differentiated
    torch.compiler.is_compiling|torch.compiler.is_exporting|torch.onnx.is_in_onnx_export() -> False
    torch.Size(sizes) -> tuple({sizes})
    torch.is_tensor(obj) -> isinstance({obj}, jax.Array)
    torch.jit.isinstance(obj, target_type) -> isinstance({obj}, {target_type})
    torch.get_default_dtype() -> jnp.float32
    torch.finfo|torch.iinfo(type) -> jnp.{}({type})
    torch.polar(abs, angle) -> {abs:a} * jnp.exp(1j * {angle:a})
    torch.complex(real, imag) -> jax.lax.complex({real}, {imag})
    torch.view_as_complex(input) -> jax.lax.complex(*jnp.moveaxis({input}, -1, 0))
    torch.view_as_real(input) -> jnp.stack([{input:a}.real, {input:a}.imag], -1)
    torch.fft.fft|torch.fft.ifft|torch.fft.rfft|torch.fft.irfft(input, n=, dim=, norm=) -> \
        jnp.fft.{}({input}<, n={n}><, axis={dim}><, norm={norm}>)
    torch.fft.fft2|torch.fft.ifft2|torch.fft.rfft2|torch.fft.irfft2(input, s=, dim=, norm=) -> \
        jnp.fft.{}({input}<, s={s}><, axes={dim}><, norm={norm}>)
    torch.fft.fftn|torch.fft.ifftn|torch.fft.rfftn|torch.fft.irfftn(input, s=, dim=, norm=) -> \
        jnp.fft.{}({input}<, s={s}><, axes={dim}><, norm={norm}>)
    torch.fft.fftshift|torch.fft.ifftshift(input, dim=) -> jnp.fft.{}({input}<, axes={dim:t}>)
    torch.fft.fftfreq|torch.fft.rfftfreq(n, d=, device?) -> jnp.fft.{}({n}<, {d}>)
    torch.cdist(x1, x2, p=) -> F.cdist({x1}, {x2}<, {p}>)
    torch.bucketize(input, boundaries, right=) -> F.searchsorted({boundaries}, {input}<, right={right}>)
    torch.searchsorted(sorted_sequence, values, right=, side=, sorter=) -> \
        F.searchsorted({sorted_sequence}, {values}<, right={right}><, side={side}><, sorter={sorter}>)
    torch.std_mean(x, dim, correction=, keepdim=) -> ( \
        F.std({x}, {dim:t}<, correction={correction}><, keepdim={keepdim}>), \
        {x:a}.mean({dim:t}<, keepdims={keepdim}>))
    torch.special.i1|torch.special.ndtr|torch.special.ndtri|torch.special.log_ndtr(input) -> \
        jax.scipy.special.{}({input})
    torch.special.xlog1py(input, other) -> jax.scipy.special.xlog1py({input}, {other})
    torch.special.entr(input) -> jax.scipy.special.entr({input})
    torch.var_mean(x, dim, unbiased, keepdim=) -> ( \
        {x:a}.var({dim:t}, ddof={unbiased:n}<, keepdims={keepdim}>), \
        {x:a}.mean({dim:t}<, keepdims={keepdim}>))
    torch.var_mean(x, dim, correction, keepdim=) -> ( \
        {x:a}.var({dim:t}, ddof={correction}<, keepdims={keepdim}>), \
        {x:a}.mean({dim:t}<, keepdims={keepdim}>))
    torch.var_mean(x, dim, keepdim=) -> ( \
        {x:a}.var({dim:t}, ddof=1<, keepdims={keepdim}>), \
        {x:a}.mean({dim:t}<, keepdims={keepdim}>))
    torch.linalg.norm(A, ord==None?, dim=, keepdim=) -> F.norm({A}<, dim={dim:t}><, keepdim={keepdim}>)
    torch.linalg.norm(A, ord, dim, keepdim=) -> F.norm({A}, {ord}, dim={dim:t}<, keepdim={keepdim}>)
    torch.linalg.vector_norm(x, ord=, dim=, keepdim=) -> \
        F.norm({x}<, {ord}><, dim={dim:t}><, keepdim={keepdim}>)
    torch.linalg.det|torch.linalg.inv|torch.linalg.cholesky|torch.linalg.eigvalsh(A) -> jnp.linalg.{}({A})
    torch.linalg.pinv(A) -> jnp.linalg.{}({A})
    torch.linalg.solve_triangular(A, B, upper==True) -> jax.scipy.linalg.solve_triangular({A}, {B})
    torch.linalg.solve_triangular(A, B, upper==False) -> \
        jax.scipy.linalg.solve_triangular({A}, {B}, lower=True)
    torch.linalg.vecdot(x, y, dim=) -> jnp.linalg.vecdot({x}, {y}<, axis={dim}>)
    torch.linalg.lu(A) -> jax.scipy.linalg.lu({A})
    torch.linalg.qr(A, mode=='reduced'?) -> jnp.linalg.{}({A})
    torch.linalg.solve|torch.linalg.matmul(A, B) -> jnp.linalg.{}({A}, {B})
    torch.linalg.matrix_power(A, n) -> jnp.linalg.matrix_power({A}, {n})
    torch.linalg.multi_dot(tensors) -> jnp.linalg.multi_dot({tensors})
    torch.linalg.cross(input, other, dim=) -> jnp.cross({input}, {other}<, axis={dim}>)
    torch.cross(input, other, dim) -> jnp.cross({input}, {other}, axis={dim})
    torch.distributions.Normal(loc, scale, validate_args=) -> \
        distributions.Normal({loc}, {scale}<, validate_args={validate_args}>)
    torch.distributions.Categorical|torch.distributions.Bernoulli(probs, validate_args=) -> \
        distributions.{}({probs}<, validate_args={validate_args}>)
    torch.distributions.Categorical|torch.distributions.Bernoulli(logits, validate_args=) -> \
        distributions.{}(logits={logits}<, validate_args={validate_args}>)
    torch.distributions.Independent(base_distribution, reinterpreted_batch_ndims, validate_args=) -> \
        distributions.Independent({base_distribution}, {reinterpreted_batch_ndims}\
<, validate_args={validate_args}>)
    torch.distributions.kl_divergence(p, q) -> distributions.kl_divergence({p}, {q})
    torch.spmm|torch.sparse.mm(sparse, dense) -> {sparse:a} @ {dense:a}
    torch.threshold(input, threshold, value) -> F.threshold({input}, {threshold}, {value})
    torch.celu(input, alpha=) -> F.celu({input}<, {alpha}>)
    torch.selu(input) -> nnx.selu({input})
    torch.nn.functional.relu|torch.nn.functional.relu6(input, inplace?) -> nnx.{}({input})
    torch.nn.functional.silu|torch.nn.functional.selu(input, inplace?) -> nnx.{}({input})
    torch.nn.functional.elu(input, alpha=, inplace?) -> nnx.elu({input}<, {alpha}>)
    torch.nn.functional.celu(input, alpha=, inplace?) -> F.celu({input}<, {alpha}>)
    torch.nn.functional.sigmoid|torch.nn.functional.tanh(input) -> nnx.{}({input})
    torch.nn.functional.hardswish(input, inplace?) -> nnx.hard_swish({input})
    torch.nn.functional.hardsigmoid(input, inplace?) -> F.hardsigmoid({input})
    torch.nn.functional.logsigmoid(input) -> nnx.log_sigmoid({input})
    torch.nn.functional.glu(input, dim=) -> nnx.glu({input}<, {dim}>)
    torch.nn.functional.softsign(input) -> nnx.soft_sign({input})
    torch.nn.functional.mish(input, inplace?) -> jax.nn.mish({input})
    torch.nn.functional.softmax(input, dim, _stacklevel?) -> nnx.softmax({input}, {dim})
    torch.nn.functional.softmax(input, dim, dtype) -> nnx.softmax({input:a}.astype({dtype}), {dim})
    torch.nn.functional.log_softmax(input, dim, _stacklevel?) -> nnx.log_softmax({input}, {dim})
    torch.nn.functional.log_softmax(input, dim, dtype) -> nnx.log_softmax({input:a}.astype({dtype}), {dim})
    torch.nn.functional.softmin(input, dim, _stacklevel?) -> nnx.softmax(-{input:a}, {dim})
    torch.nn.functional.tanhshrink(input) -> {input:a} - jnp.tanh({input})
    torch.nn.functional.threshold(input, threshold, value, inplace?) -> \
        F.threshold({input}, {threshold}, {value})
    torch.nn.functional.one_hot(tensor, num_classes) -> nnx.one_hot({tensor}, {num_classes}, dtype=int)
    torch.nn.functional.linear(input, weight, bias=) -> {input:a} @ {weight:a}.T< + {bias:a}>
    torch.randn_like(input) -> {rngs}.normal({input:a}.shape, {input:a}.dtype)
    torch.bernoulli(input) -> {rngs}.bernoulli({input}).astype({input:a}.dtype)
    torch.jit.annotate(the_type, the_value) -> {the_value}
    torch.utils.checkpoint.checkpoint(function, *args, use_reentrant?) -> {function}({args})  # see nnx.remat
    torch.nn.Embedding.from_pretrained(embeddings, freeze=, padding_idx=, max_norm=, norm_type=, \
        scale_grad_by_freq=) -> nn.Embedding.from_pretrained({embeddings}<, freeze={freeze}>\
<, padding_idx={padding_idx}><, max_norm={max_norm}><, norm_type={norm_type}>\
<, scale_grad_by_freq={scale_grad_by_freq}>)
    torch.nn.utils.parametrizations.weight_norm(module, name=='weight'?, dim==0?) -> nn.WeightNorm({module})
    torch.nn.utils.parametrizations.weight_norm(module, name=='weight'?, dim==None) -> \
        nn.WeightNorm({module}, dim=None)
    torch.nn.utils.parametrizations.weight_norm(module, name=='weight'?, dim==1) -> \
        nn.WeightNorm({module}, dim=-2)
    torch.nn.utils.parametrizations.weight_norm(module, name=='weight'?, dim==2) -> \
        nn.WeightNorm({module}, dim=0)
    torch.nn.utils.parametrizations.spectral_norm( \
        module, name=='weight'?, n_power_iterations=, eps=, dim==1) -> \
        nn.SpectralNorm({module}<, n_power_iterations={n_power_iterations}><, eps={eps}>, dim=-2, rngs=rngs)
    torch.nn.functional.instance_norm(input, running_mean==None?, running_var==None?, weight=, bias=, \
        use_input_stats==True?, momentum?, eps=) -> \
        F.instance_norm({input}<, scale={weight}><, bias={bias}><, eps={eps}>)
    torch.nn.functional.batch_norm(input, running_mean==None, running_var==None, weight=, bias=, \
        training==True, momentum?, eps=) -> \
        F.batch_norm({input}, None, None<, scale={weight}><, bias={bias}>, training=True<, eps={eps}>)
    torch.nn.functional.batch_norm(input, running_mean, running_var, weight=, bias=, training==False?, \
        momentum?, eps=) -> \
        F.batch_norm({input}, {running_mean}, {running_var}<, scale={weight}><, bias={bias}><, eps={eps}>)
    torch.nn.utils.parametrizations.spectral_norm(module, name=='weight'?, n_power_iterations=, eps=) -> \
        nn.SpectralNorm({module}<, n_power_iterations={n_power_iterations}><, eps={eps}>, rngs=rngs)
    torch.nn.utils.spectral_norm(module, name=='weight'?, n_power_iterations=, eps=) -> \
        nn.SpectralNorm({module}<, n_power_iterations={n_power_iterations}><, eps={eps}>, first="v", \
rngs=rngs)
    torch.nn.Transformer.generate_square_subsequent_mask(sz, device?, dtype=) -> \
        jnp.triu(jnp.full(({sz}, {sz}), -jnp.inf<, {dtype}>), 1)
    torch.nn.functional.leaky_relu(x, negative_slope=, inplace?) -> F.leaky_relu({x}<, {negative_slope}>)
    torch.nn.functional.hardtanh(x, min_val=, max_val=, inplace?) -> F.hardtanh({x}<, {min_val}><, {max_val}>)
    torch.nn.functional.dropout(x, p=, training=, inplace?) -> \
        F.dropout({x}<, p={p}><, training={training}>, key={rngs})
    torch.nn.functional.scaled_dot_product_attention( \
        query, key, value, attn_mask=, dropout_p==0.0?, is_causal=, scale=) -> \
        F.scaled_dot_product_attention({query}, {key}, {value}<, attn_mask={attn_mask}>\
<, is_causal={is_causal}><, scale={scale}>)
    torch.nn.functional.scaled_dot_product_attention( \
        query, key, value, attn_mask=, dropout_p=, is_causal=, scale=) -> \
        F.scaled_dot_product_attention({query}, {key}, {value}<, attn_mask={attn_mask}>\
<, dropout_p={dropout_p}, dropout_key={rngs}><, is_causal={is_causal}><, scale={scale}>)
""")
IN_CALL = table("""
    torch.rand(*size, dtype=, device?) -> {rngs}.uniform({size:t}<, {dtype}>)
    torch.randn(*size, dtype=, device?) -> {rngs}.normal({size:t}<, {dtype}>)
    torch.rand_like(input) -> {rngs}.uniform({input:a}.shape, {input:a}.dtype)
""")
"""Rules of functions that draw from the module's stream where they run in its call."""
_SAME = (
    "gelu(input, approximate=), softplus(input, beta=, threshold=), softshrink(input, lambd=), "
    "hardshrink(input, lambd=), prelu(input, weight), normalize(input, p=, dim=, eps=), "
    "pad(input, pad, mode=, value=), layer_norm(input, normalized_shape, weight=, bias=, eps=), "
    "group_norm(input, num_groups, weight=, bias=, eps=), pixel_shuffle(input, upscale_factor), "
    "pixel_unshuffle(input, downscale_factor), unfold(input, kernel_size, dilation=, padding=, stride=), "
    "embedding(input, weight, padding_idx=), "
    "grid_sample(input, grid, mode=, padding_mode=, align_corners=), "
    "interpolate(input, size=, scale_factor=, mode=, align_corners=, recompute_scale_factor=, "
    "antialias=), "
    "local_response_norm(input, size, alpha=, beta=, k=), "
    "cross_entropy(input, target, weight=, ignore_index=, reduction=, label_smoothing=), "
    "nll_loss(input, target, weight=, ignore_index=, reduction=), mse_loss(input, target, reduction=), "
    "binary_cross_entropy(input, target, weight=, reduction=), "
    "binary_cross_entropy_with_logits(input, target, weight=, reduction=, pos_weight=), "
    "l1_loss(input, target, reduction=), smooth_l1_loss(input, target, reduction=, beta=), "
    "huber_loss(input, target, reduction=, delta=), kl_div(input, target, reduction=, log_target=), "
    "poisson_nll_loss(input, target, log_input=, full=, eps=, reduction=), "
    "gaussian_nll_loss(input, target, var, full=, eps=, reduction=), "
    "hinge_embedding_loss(input, target, margin=, reduction=), soft_margin_loss(input, target, reduction=), "
    "margin_ranking_loss(input1, input2, target, margin=, reduction=), "
    "multi_margin_loss(input, target, p=, margin=, weight=, reduction=), "
    "multilabel_margin_loss(input, target, reduction=), "
    "multilabel_soft_margin_loss(input, target, weight=, reduction=), "
    "cosine_embedding_loss(input1, input2, target, margin=, reduction=), "
    "ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=, reduction=, zero_infinity=), "
    "triplet_margin_loss(anchor, positive, negative, margin=, p=, eps=, swap=, reduction=), "
    "rms_norm(input, normalized_shape, weight=, eps=), channel_shuffle(input, groups), "
    "fold(input, output_size, kernel_size, dilation=, padding=, stride=), "
    "affine_grid(theta, size, align_corners=), pairwise_distance(x1, x2, p=, eps=, keepdim=), "
    "cosine_similarity(x1, x2, dim=, eps=)"
)
"""Functions of jaxpar.nn.channels_first.functional with torch's names and arguments."""
_RENAMED = {
    "weight": {"layer_norm": "scale", "rms_norm": "scale", "group_norm": "scale", "embedding": "embedding"}
}
_BY_AXES = (
    "conv{n}d(input, weight, bias=, stride=, padding=, dilation=, groups=), "
    "max_pool{n}d(input, kernel_size, stride=, padding=, dilation=, ceil_mode=, return_indices=), "
    "max_unpool{n}d(input, indices, kernel_size, stride=, padding=, output_size=), "
    "avg_pool{n}d(input, kernel_size, stride=, padding=, ceil_mode=, count_include_pad=, divisor_override=), "
    "lp_pool{n}d(input, norm_type, kernel_size, stride=, ceil_mode=), "
    "adaptive_avg_pool{n}d(input, output_size), adaptive_max_pool{n}d(input, output_size, return_indices=), "
    "conv_transpose{n}d(input, weight, bias=, stride=, padding=, output_padding=, groups=, dilation=)"
)


def _calls(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Parse `f(a, b=), g(c)` into names and signatures."""
    signatures = []
    for call in text.split("), "):
        name, _, parameters = call.rstrip(")").partition("(")
        signatures.append((name, tuple(parameter.strip() for parameter in parameters.split(","))))
    return signatures


def _of_method(rule: CallRule) -> CallRule:
    return CallRule(("self", *rule.signature), rule.template, rule.note)


def _same(name: str, signature: tuple[str, ...]) -> CallRule:
    """Return the rule of an equal function: the first argument by position, the others by jaxpar's names."""
    first, *others = (parameter for parameter in signature if not parameter.endswith("?"))
    arguments = ""
    for parameter in others:
        plain = parameter.strip("=")
        keyword = _RENAMED.get(plain, {}).get(name, plain)
        arguments += f"<, {keyword}={{{plain}}}>" if parameter.endswith("=") else f", {{{plain}}}"
    return CallRule(signature, f"F.{name}({{{first}}}{arguments})")


for _name, _signature in _calls(", ".join([_SAME, *(_BY_AXES.format(n=n) for n in (1, 2, 3))])):
    FUNCTIONS.setdefault(f"torch.nn.functional.{_name}", []).append(_same(_name, _signature))
_PLACES = (
    "query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, "
    "add_zero_attn, dropout_p, out_proj_weight, out_proj_bias"
)
_NAMED = (
    "training=, key_padding_mask=, need_weights=, attn_mask=, use_separate_proj_weight=, q_proj_weight=, "
    "k_proj_weight=, v_proj_weight=, static_k==None?, static_v==None?, average_attn_weights=, is_causal="
)
_values = ", ".join(f"{{{name}}}" for name in _PLACES.split(", "))
_values += "".join(f"<, {name}{{{name[:-1]}}}>" for name in _NAMED.split(", ") if name.endswith("="))
for _rate, _key in (("==0.0", ""), ("==0", ""), ("", ", dropout_key={rngs}")):
    _all = f"{_PLACES.replace('dropout_p', f'dropout_p{_rate}')}, {_NAMED}".split(", ")
    _rule = CallRule(tuple(_all), f"F.multi_head_attention_forward({_values}{_key})")
    FUNCTIONS.setdefault("torch.nn.functional.multi_head_attention_forward", []).append(_rule)
# The names of torch.special are methods' or others' in this table.
_OF_SPECIAL = ("erf", "erfc", "expm1", "log1p", "exp2", "sinc", "logit", "xlogy", "softmax", "log_softmax")
_RENAMED_IN_SPECIAL = {"expit": "sigmoid", "gammaln": "lgamma", "digamma": "digamma", "psi": "digamma"}
for _name, _method in {**{name: name for name in _OF_SPECIAL}, **_RENAMED_IN_SPECIAL}.items():
    FUNCTIONS[f"torch.special.{_name}"] = [_of_method(rule) for rule in METHODS[_method]]
FUNCTIONS["torch.nn.utils.weight_norm"] = FUNCTIONS["torch.nn.utils.parametrizations.weight_norm"]
FUNCTIONS.update(table(OF_TRANSFORMERS))
for _name, _rules in METHODS.items():
    FUNCTIONS.setdefault(f"torch.{_name}", []).extend(map(_of_method, _rules))
# `torch.relu_(x)` changes x, which `translating.in_place_layers` writes.
for _name in (*IN_PLACE.values(), "selu", "celu", "threshold"):
    FUNCTIONS[f"torch.{_name}_"] = FUNCTIONS[f"torch.{_name}"]
for _name in ("elu", "hardtanh", "leaky_relu"):
    FUNCTIONS[f"torch.nn.functional.{_name}_"] = FUNCTIONS[f"torch.nn.functional.{_name}"]


PASSED_ON = ("_loss", "cross_entropy", "_with_logits", "kl_div")
"""Ends of the names of losses, which jaxpar.nn has with torch's arguments."""


def as_value(name: str) -> str | None:
    """Write a loss or a function of one argument that is passed on: `jnp.sin`, a lambda; or return None."""
    plain = name.removeprefix("torch.nn.functional.")
    if plain != name and plain.endswith(PASSED_ON):
        return f"F.{plain}"
    for rule in FUNCTIONS.get(name, []):
        needed = [parameter for parameter in rule.signature if parameter[-1] not in "=?"]
        if len(needed) != 1 or needed[0].startswith("*") or "{rngs}" in rule.template:
            continue
        if rule.note == SHAPE:
            continue
        call = re.fullmatch(r"([\w.]+)\(\{\w+\}(?:<[^>]*>)*(?:, ([^{}<>]+))?\)", rule.template)
        if call:
            return f"partial({call[1]}, {call[2]})" if call[2] else call[1]
        written = rule.apply(ast.Call(ast.Name(name), [ast.Name("x")], []), lambda node, form: "x")
        return f"(lambda x: {written})"
    return None
