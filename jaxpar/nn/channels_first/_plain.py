"""Layers of jaxpar.nn that do not depend on the layout."""

from .._activation import RReLU as RReLU
from .._bilinear import Bilinear as Bilinear
from .._dropout import AlphaDropout as AlphaDropout
from .._dropout import Dropout as Dropout
from .._embedding import Embedding as Embedding
from .._embedding import EmbeddingBag as EmbeddingBag
from .._layer_norm import LayerNorm as LayerNorm
from .._layer_norm import RMSNorm as RMSNorm
from .._multihead_attention import MultiheadAttention as MultiheadAttention
from .._recurrent import GRU as GRU
from .._recurrent import LSTM as LSTM
from .._recurrent import RNN as RNN
from .._recurrent import GRUCell as GRUCell
from .._recurrent import LSTMCell as LSTMCell
from .._recurrent import RNNCell as RNNCell
from .._transformer import Transformer as Transformer
from .._transformer import TransformerDecoder as TransformerDecoder
from .._transformer import TransformerDecoderLayer as TransformerDecoderLayer
from .._transformer import TransformerEncoder as TransformerEncoder
from .._transformer import TransformerEncoderLayer as TransformerEncoderLayer
from .._weight_norm import SpectralNorm as SpectralNorm
from .._weight_norm import WeightNorm as WeightNorm
