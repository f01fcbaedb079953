"""The models of pytorch/examples, as their scripts have them."""

from __future__ import annotations

from functools import partial

from ..case import Case, integers, normal
from . import pytorch_images as images
from . import pytorch_sequences as sequences

CASES: tuple[Case, ...] = (
    Case("mnist", images.Digits, (normal(3, 1, 12, 12),)),
    Case("mnist_rnn", sequences.Rows, (normal(4, 1, 12, 12),)),
    Case("mnist_forward_forward", sequences.ForwardForward, (normal(3, 8),)),
    Case("dcgan generator", images.Generator, (normal(3, 10, 1, 1),)),
    Case("dcgan discriminator", images.Discriminator, (normal(3, 3, 16, 16),)),
    Case("vae, noise given", images.Autoencoder, (normal(3, 1, 6, 6), normal(3, 4))),
    Case("vae", images.SampledAutoencoder, (normal(3, 1, 6, 6),)),
    Case("word_language_model LSTM", sequences.Language, (integers(11, 5, 3),)),
    Case("word_language_model GRU", partial(sequences.Language, "GRU"), (integers(11, 5, 3),)),
    Case("word_language_model Transformer", sequences.TransformerLanguage, (integers(11, 5, 3),)),
    Case("super_resolution", images.SuperResolution, (normal(2, 1, 8, 8),)),
    Case("fast_neural_style", images.Style, (normal(2, 3, 12, 12),)),
    Case("siamese_network", images.Siamese, (normal(3, 1, 12, 12), normal(3, 1, 12, 12))),
    Case("time_sequence_prediction", sequences.Sequence, (normal(3, 4),), {"future": 2}),
    Case("snli", sequences.Inference, (integers(13, 5, 3), integers(13, 4, 3))),
    Case("gcn", sequences.Graph, (normal(5, 6), normal(5, 5))),
    Case("gat", sequences.GraphAttention, (normal(5, 6), normal(5, 5))),
    Case("actor_critic", sequences.Policy, (normal(3, 4),)),
    Case("regression", sequences.PolynomialFit, (normal(6),)),
    Case("vision_transformer", images.PatchTransformer, (normal(3, 3, 8, 8),)),
)
