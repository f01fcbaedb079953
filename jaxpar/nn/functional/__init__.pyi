# Imports only, by name.
from ._cells import gru_cell as gru_cell
from ._cells import lstm_cell as lstm_cell
from ._cells import rnn_relu_cell as rnn_relu_cell
from ._cells import rnn_tanh_cell as rnn_tanh_cell
from ._recurrent import gru as gru
from ._recurrent import lstm as lstm
from ._recurrent import rnn_relu as rnn_relu
from ._recurrent import rnn_tanh as rnn_tanh
