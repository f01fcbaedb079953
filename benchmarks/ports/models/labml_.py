"""labml_nn: of each of its files with modules the one that holds the most of the others."""

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import torch

from ..case import Case, Maker, integers, normal

SEQUENCE = normal(6, 2, 16)
"""As labml has it: steps, batch, width."""
BATCH_FIRST = normal(2, 6, 16)
IMAGES, SMALL = (normal(2, 3, 32, 32),), (normal(2, 3, 16, 16),)
WORDS = integers(20, 6, 2)


def causal(steps: int = 6, keys: int = 6) -> Maker:
    """Mask of labml's attention: a row for each query, a column for each key."""
    return lambda generator: torch.tril(torch.ones(steps, keys), keys - steps).bool().unsqueeze(-1)


def graph(generator: torch.Generator) -> torch.Tensor:
    """Adjacency of five nodes, each its own neighbour."""
    edges = torch.rand(5, 5, 1, generator=generator) < 0.5
    return edges | torch.eye(5).bool().unsqueeze(-1)


def probabilities(*shape: int) -> Maker:
    return lambda generator: torch.rand(shape, generator=generator)


def evidence(generator: torch.Generator) -> torch.Tensor:
    return 3 * torch.rand(4, 5, generator=generator)


def one_hot(generator: torch.Generator) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.randint(5, (4,), generator=generator), 5).float()


def module(path: str) -> Any:
    return importlib.import_module(f"labml_nn.{path}")


def case(path: str, name: str, inputs: Any, *args: Any, call: Any = None, **kwargs: Any) -> Case:
    """A class of a file, made of `args` and `kwargs`, and called with `inputs` and the keywords `call`."""
    return Case(path, lambda: getattr(module(path), name)(*args, **kwargs), inputs, call or {})


def attention(path: str = "transformers.mha", name: str = "MultiHeadAttention", **kwargs: Any) -> Any:
    return getattr(module(path), name)(2, 16, dropout_prob=0.0, **kwargs)


def feed_forward() -> Any:
    return module("transformers.feed_forward").FeedForward(16, 32, dropout=0.0)


def layer() -> Any:
    models = module("transformers.models")
    return models.TransformerLayer(
        d_model=16, self_attn=attention(), feed_forward=feed_forward(), dropout_prob=0.0
    )


def conv_mixer() -> torch.nn.Module:
    parts = module("conv_mixer")
    layers = parts.ConvMixerLayer(8, 3), 2, parts.PatchEmbeddings(8, 4, 3), parts.ClassificationHead(8, 5)
    return parts.ConvMixer(*layers)


def encoder_decoder() -> torch.nn.Module:
    models = module("transformers.models")
    decoder = models.TransformerLayer(
        d_model=16,
        self_attn=attention(),
        src_attn=attention(),
        feed_forward=feed_forward(),
        dropout_prob=0.0,
    )
    return models.EncoderDecoder(
        models.Encoder(layer(), 2),
        models.Decoder(decoder, 2),
        models.EmbeddingsWithPositionalEncoding(16, 20),
        models.EmbeddingsWithLearnedPositionalEncoding(16, 20),
        models.Generator(20, 16),
    )


def gpt() -> torch.nn.Module:
    models = module("transformers.models")
    embedding = models.EmbeddingsWithLearnedPositionalEncoding(16, 20)
    return module("transformers.gpt").GPT(models.Encoder(layer(), 2), embedding, models.Generator(20, 16))


def vision_transformer() -> torch.nn.Module:
    parts = module("transformers.vit")
    embeddings = parts.PatchEmbeddings(16, 4, 3), parts.LearnedPositionalEmbeddings(16, 100)
    return parts.VisionTransformer(layer(), 2, *embeddings, parts.ClassificationHead(16, 8, 5))


def transformer_xl() -> torch.nn.Module:
    parts = module("transformers.xl")
    attend = attention("transformers.xl.relative_mha", "RelativeMultiHeadAttention")
    one = parts.TransformerXLLayer(
        d_model=16, self_attn=attend, feed_forward=feed_forward(), dropout_prob=0.0
    )
    return parts.TransformerXL(one, 2)


def compressive() -> torch.nn.Module:
    parts = module("transformers.compressive")
    attend = attention("transformers.xl.relative_mha", "RelativeMultiHeadAttention")
    one = parts.CompressiveTransformerLayer(
        d_model=16,
        self_attn=attend,
        feed_forward=feed_forward(),
        dropout_prob=0.0,
        compress=parts.Conv1dCompression(2, 16),
    )
    return parts.CompressiveTransformer(one, 2)


def feedback(name: str) -> torch.nn.Module:
    parts = module("transformers.feedback")
    precomputed = name == "FeedbackTransformerKV"
    attend = parts.FeedbackAttention(2, 16, dropout_prob=0.0, is_kv_precomputed=precomputed)
    one = parts.FeedbackTransformerLayer(
        d_model=16, attn=attend, feed_forward=feed_forward(), dropout_prob=0.0
    )
    return getattr(parts, name)(one, 2, *((16, 2) if precomputed else ()))


def fast_weights(path: str = "transformers.fast_weights") -> torch.nn.Module:
    parts, phi = module(path), module("transformers.fast_weights").DPFP()
    one = parts.FastWeightsAttentionTransformerLayer(
        d_model=16,
        attn=parts.FastWeightsAttention(2, 16, 0.0, phi),
        feed_forward=feed_forward(),
        dropout_prob=0.0,
    )
    return parts.FastWeightsAttentionTransformer(one, 2)


def switch() -> torch.nn.Module:
    parts = module("transformers.switch")
    experts = parts.SwitchFeedForward(
        capacity_factor=1.2,
        drop_tokens=False,
        is_scale_prob=True,
        n_experts=3,
        expert=feed_forward(),
        d_model=16,
    )
    one = parts.SwitchTransformerLayer(d_model=16, attn=attention(), feed_forward=experts, dropout_prob=0.0)
    return parts.SwitchTransformer(one, 2)


def retro() -> torch.nn.Module:
    parts = module("transformers.retro.model")
    encoder = parts.NearestNeighborEncoder(4, 2, {1}, 16, 2, 8, 32)
    return parts.RetroModel(20, 16, 3, {2}, 4, 2, 8, 32, encoder)


def deep_norm() -> torch.nn.Module:
    return module("normalization.deep_norm").DeepNormTransformerLayer(
        d_model=16,
        self_attn=attention(),
        feed_forward=feed_forward(),
        deep_norm_alpha=1.2,
        deep_norm_beta=0.8,
    )


def rwkv() -> torch.nn.Module:
    """Half of a block: the whole model writes into a state that is None."""
    net: torch.nn.Module = module("rwkv").ChannelMixing(SimpleNamespace(n_embd=16, intermediate_size=32), 0)
    return net


@functools.cache
@functools.cache
def one_tensor(generator: torch.Generator) -> torch.Tensor:
    """Query, key and value at once: some modules assert that they are one object."""
    return SEQUENCE(generator)


def mlp_mixer() -> torch.nn.Module:
    mixing = module("transformers.feed_forward").FeedForward(6, 8, dropout=0.0)
    net: torch.nn.Module = module("transformers.mlp_mixer").MLPMixer(mixing)
    return net


QUERY_KEY_VALUE = {"query": SEQUENCE, "key": SEQUENCE, "value": SEQUENCE}
ATTENTIONS = {
    "transformers.mha": "MultiHeadAttention",
    "transformers.xl.relative_mha": "RelativeMultiHeadAttention",
    "transformers.primer_ez": "MultiDConvHeadAttention",
    "transformers.primer_ez.efficient": "MultiDConvHeadAttention",
    "transformers.primer_ez.variations": "MultiDPHConvHeadAttention",
    "transformers.rope": "RotaryPEMultiHeadAttention",
    "transformers.rope.value_pe": "RotaryValuePEMultiHeadAttention",
    "transformers.alibi": "AlibiMultiHeadAttention",
}
STABLE_UNET: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "channels": 32,
    "n_res_blocks": 1,
    "attention_levels": [1],
    "channel_multipliers": [1, 2],
    "n_heads": 2,
    "d_cond": 16,
}
LORA_GPT: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "n_positions": 10,
    "layer_norm_epsilon": 1e-5,
    "vocab_size": 20,
    "r": 2,
}
IN_RL = tuple(normal(4) for _ in range(3))

CASES = (
    case("activations.fta", "FTA", (normal(4, 3),), lower_limit=-2.0, upper_limit=2.0, delta=0.5, eta=0.3),
    case("activations.swish", "Swish", (normal(4, 3),)),
    case("adaptive_computation.ponder_net", "ParityPonderGRU", (normal(4, 6),), 6, 8, 4),
    case("capsule_networks", "Router", (normal(2, 6, 4),), 6, 3, 4, 5, 2),
    Case("conv_mixer", conv_mixer, SMALL),
    case(
        "diffusion.ddpm.unet",
        "UNet",
        (*SMALL, integers(50, 2)),
        n_channels=32,
        ch_mults=(1, 2),
        is_attn=(False, True),
        n_blocks=1,
    ),
    case(
        "diffusion.stable_diffusion.model.autoencoder",
        "Encoder",
        SMALL,
        channels=32,
        channel_multipliers=[1, 2],
        n_resnet_blocks=1,
        in_channels=3,
        z_channels=4,
    ),
    case(
        "diffusion.stable_diffusion.model.unet",
        "UNetModel",
        (normal(2, 4, 8, 8), integers(50, 2), normal(2, 5, 16)),
        **STABLE_UNET,
    ),
    case(
        "diffusion.stable_diffusion.model.unet_attention",
        "SpatialTransformer",
        (normal(2, 32, 4, 4), normal(2, 5, 16)),
        channels=32,
        n_heads=2,
        n_layers=1,
        d_cond=16,
    ),
    case("distillation.large", "LargeModel", IMAGES),
    case("distillation.small", "SmallModel", IMAGES),
    case("gan.cycle_gan", "GeneratorResNet", SMALL, 3, 1),
    case("gan.dcgan", "Generator", (normal(2, 100),)),
    case("gan.original", "DiscriminatorLogitsLoss", (normal(4, 1), normal(4, 1))),
    case(
        "gan.stylegan",
        "Discriminator",
        (normal(4, 3, 16, 16),),
        log_resolution=4,
        n_features=8,
        max_features=16,
    ),
    case("gan.wasserstein", "DiscriminatorLoss", (normal(4, 1), normal(4, 1))),
    case(
        "graphs.gat",
        "GraphAttentionLayer",
        (normal(5, 6), graph),
        in_features=6,
        out_features=8,
        n_heads=2,
        dropout=0.0,
    ),
    case(
        "graphs.gatv2",
        "GraphAttentionV2Layer",
        (normal(5, 6), graph),
        in_features=6,
        out_features=8,
        n_heads=2,
        dropout=0.0,
    ),
    case("hypernetworks.hyper_lstm", "HyperLSTM", (normal(4, 2, 5),), 5, 6, 4, 3, 2),
    case("lora", "Linear", (normal(3, 6),), in_features=6, out_features=5, bias=True, r=2),
    case("lora.gpt2", "GPTModel", (integers(20, 2, 6),), **LORA_GPT),
    case("lstm", "LSTM", (normal(4, 2, 5),), 5, 6, 2),
    case("neox.model", "TransformerLayer", (BATCH_FIRST,), 16, 2),
    case("normalization.batch_channel_norm", "BatchChannelNorm", (normal(4, 8, 5, 5),), 8, 2),
    case("normalization.batch_norm", "BatchNorm", (normal(4, 8, 5, 5),), 8),
    Case("normalization.deep_norm", deep_norm, (SEQUENCE,)),
    case("normalization.group_norm", "GroupNorm", (normal(4, 8, 5, 5),), 2, 8),
    case("normalization.instance_norm", "InstanceNorm", (normal(4, 8, 5, 5),), 8),
    case("normalization.layer_norm", "LayerNorm", (normal(4, 8, 5),), [8, 5]),
    case("normalization.weight_standardization.conv2d", "Conv2d", SMALL, 3, 4, 3),
    case("recurrent_highway_networks", "RHN", (normal(4, 2, 5),), 5, 6, 2, 2),
    case(
        "resnet",
        "ResNetBase",
        IMAGES,
        n_blocks=[1, 1],
        n_channels=[8, 16],
        bottlenecks=[4, 8],
        first_kernel_size=3,
    ),
    case("rl.dqn.model", "Model", (normal(1, 4, 84, 84),)),
    case("rl.ppo", "ClippedValueFunctionLoss", IN_RL, call={"clip": 0.2}),
    Case("rwkv", rwkv, (BATCH_FIRST,)),
    case(
        "transformers.aft",
        "AFTLocal",
        (),
        d_model=16,
        seq_len=6,
        local_window_size=3,
        call={**QUERY_KEY_VALUE, "mask": causal()},
    ),
    Case(
        "transformers.compressive",
        compressive,
        (SEQUENCE,),
        {"mem": lambda generator: [], "c_mem": lambda generator: [], "mask": causal()},
    ),
    Case("transformers.fast_weights", fast_weights, (SEQUENCE,)),
    Case(
        "transformers.fast_weights.token_wise",
        lambda: fast_weights("transformers.fast_weights.token_wise"),
        (SEQUENCE,),
    ),
    case(
        "transformers.feed_forward",
        "FeedForward",
        (SEQUENCE,),
        d_model=16,
        d_ff=32,
        dropout=0.0,
        is_gated=True,
    ),
    Case("transformers.feedback", lambda: feedback("FeedbackTransformerKV"), (SEQUENCE,)),
    case("transformers.fnet", "FNetMix", (one_tensor, one_tensor, one_tensor)),
    case(
        "transformers.gmlp",
        "GMLPBlock",
        (),
        d_model=16,
        d_ffn=32,
        seq_len=6,
        call={"x": SEQUENCE, "mask": causal()},
    ),
    Case("transformers.gpt", gpt, (WORDS,)),
    case(
        "transformers.hour_glass",
        "HourGlass",
        (SEQUENCE,),
        n_heads=2,
        d_model=16,
        dropout=0.0,
        d_ff=32,
        shortening_factors=[2],
    ),
    Case("transformers.mlp_mixer", mlp_mixer, (one_tensor, one_tensor, one_tensor)),
    Case(
        "transformers.models",
        encoder_decoder,
        (WORDS, integers(20, 6, 2), lambda generator: torch.ones(6, 6, 1).bool(), causal()),
    ),
    case("transformers.positional_encoding", "PositionalEncoding", (SEQUENCE,), 16, 0.0),
    Case("transformers.retro.model", retro, (integers(20, 2, 8), integers(20, 2, 2, 3, 8))),
    Case("transformers.switch", switch, (SEQUENCE, causal())),
    Case("transformers.vit", vision_transformer, SMALL),
    Case(
        "transformers.xl",
        transformer_xl,
        (SEQUENCE,),
        {"mem": lambda generator: [normal(6, 2, 16)(generator) for _ in range(2)], "mask": causal(6, 12)},
    ),
    case("uncertainty.evidence", "CrossEntropyBayesRisk", (evidence, one_hot)),
    case("unet", "UNet", SMALL, 3, 2),
    *(
        Case(
            path,
            lambda path=path, name=name: attention(path, name),
            (),
            {**QUERY_KEY_VALUE, "mask": causal()},
        )
        for path, name in ATTENTIONS.items()
    ),
)
