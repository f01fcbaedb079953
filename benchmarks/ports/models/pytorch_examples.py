"""The models of pytorch/examples, as their scripts have them."""

from __future__ import annotations

from functools import partial

from ..case import Case, integers, normal
from . import pytorch_nets as nets

CASES: tuple[Case, ...] = (
    Case("mnist", nets.Digits, (normal(3, 1, 12, 12),)),
    Case("mnist_rnn", nets.Rows, (normal(4, 1, 12, 12),)),
    Case("mnist_forward_forward", nets.ForwardForward, (normal(3, 8),)),
    Case("dcgan generator", nets.Generator, (normal(3, 10, 1, 1),)),
    Case("dcgan discriminator", nets.Discriminator, (normal(3, 3, 16, 16),)),
    Case("vae, noise given", nets.Autoencoder, (normal(3, 1, 6, 6), normal(3, 4))),
    Case("vae", nets.SampledAutoencoder, (normal(3, 1, 6, 6),)),
    Case("word_language_model LSTM", nets.Language, (integers(11, 5, 3),)),
    Case("word_language_model GRU", partial(nets.Language, "GRU"), (integers(11, 5, 3),)),
    Case("word_language_model Transformer", nets.TransformerLanguage, (integers(11, 5, 3),)),
    Case("super_resolution", nets.SuperResolution, (normal(2, 1, 8, 8),)),
    Case("fast_neural_style", nets.Style, (normal(2, 3, 12, 12),)),
    Case("siamese_network", nets.Siamese, (normal(3, 1, 12, 12), normal(3, 1, 12, 12))),
    Case("time_sequence_prediction", nets.Sequence, (normal(3, 4),), {"future": 2}),
    Case("snli", nets.Inference, (integers(13, 5, 3), integers(13, 4, 3))),
    Case("gcn", nets.Graph, (normal(5, 6), normal(5, 5))),
    Case("gat", nets.GraphAttention, (normal(5, 6), normal(5, 5))),
    Case("actor_critic", nets.Policy, (normal(3, 4),)),
    Case("regression", nets.PolynomialFit, (normal(6),)),
    Case("vision_transformer", nets.PatchTransformer, (normal(3, 3, 8, 8),)),
)
