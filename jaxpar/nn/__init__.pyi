from . import functional as functional
from ._batch_norm import BatchNorm as BatchNorm
from ._cells import GRUCell as GRUCell
from ._cells import LSTMCell as LSTMCell
from ._cells import RNNCell as RNNCell
from ._recurrent import GRU as GRU
from ._recurrent import LSTM as LSTM
from ._recurrent import RNN as RNN
