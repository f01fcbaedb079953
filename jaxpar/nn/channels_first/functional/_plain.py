"""Functions of jaxpar.nn.functional that do not depend on the layout."""

from ...functional import alpha_dropout as alpha_dropout
from ...functional import bilinear as bilinear
from ...functional import cosine_similarity as cosine_similarity
from ...functional import dropout as dropout
from ...functional import embedding as embedding
from ...functional import gelu as gelu
from ...functional import hardshrink as hardshrink
from ...functional import hardtanh as hardtanh
from ...functional import layer_norm as layer_norm
from ...functional import leaky_relu as leaky_relu
from ...functional import pairwise_distance as pairwise_distance
from ...functional import rms_norm as rms_norm
from ...functional import scaled_dot_product_attention as scaled_dot_product_attention
from ...functional import softshrink as softshrink
from ...functional import threshold as threshold
