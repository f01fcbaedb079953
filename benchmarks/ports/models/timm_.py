"""timm: of each file of `timm.models` the smallest of its models by the number of parameters."""

from __future__ import annotations

from typing import Any

import torch

from ..case import Case, normal

MODELS = {
    "beit": ("beit_base_patch16_224", 32, 2, True),
    "byoanet": ("halonet_h1", 256, 2, True),
    "byobnet": ("test_byobnet", 64, 2, True),
    "cait": ("cait_xxs24_224", 32, 2, True),
    "coat": ("coat_tiny", 32, 2, True),
    "convit": ("convit_tiny", 32, 2, True),
    "convmixer": ("convmixer_768_32", 32, 2, False),
    "convnext": ("test_convnext", 32, 2, False),
    "cpubone": ("cpubone_nano", 64, 2, False),
    "crossvit": ("crossvit_tiny_240", 32, 2, False),
    "csatv2": ("csatv2", 64, 2, False),
    "cspnet": ("cs3darknet_focus_s", 64, 2, False),
    "cspnext": ("cspnext_tiny", 64, 2, False),
    "davit": ("davit_tiny", 32, 2, False),
    "deit": ("deit_tiny_patch16_224", 32, 2, True),
    "densenet": ("densenet121", 64, 2, False),
    "dla": ("dla46x_c", 64, 2, False),
    "dpn": ("dpn48b", 64, 2, False),
    "edgenext": ("edgenext_xx_small", 32, 2, False),
    "efficientformer": ("efficientformer_l1", 224, 2, True),
    "efficientformer_v2": ("efficientformerv2_s0", 64, 2, True),
    "efficientnet": ("test_efficientnet", 64, 2, False),
    "efficientvim": ("efficientvim_m1", 64, 8, False),
    "efficientvit_mit": ("efficientvit_b0", 64, 2, False),
    "efficientvit_msra": ("efficientvit_m0", 64, 8, True),
    "eva": ("vit_tiny_patch16_dinov3_qkvb", 32, 2, True),
    "fasternet": ("fasternet_t0", 64, 2, False),
    "fastvit": ("fastvit_t8", 64, 2, False),
    "focalnet": ("focalnet_tiny_srf", 32, 2, False),
    "gcvit": ("gcvit_xxtiny", 32, 2, True),
    "gemma4_vit": ("gemma4_vit_167m_enc", 96, 2, True),
    "ghostnet": ("ghostnet_050", 64, 2, False),
    "hardcorenas": ("hardcorenas_b", 64, 2, False),
    "hgnet": ("hgnetv2_b0", 64, 2, False),
    "hiera": ("hiera_tiny_224", 32, 2, True),
    "hieradet_sam2": ("sam2_hiera_tiny", 32, 2, False),
    "hrnet": ("hrnet_w18_small", 64, 2, False),
    "iformer": ("iformer_t", 64, 8, False),
    "inception_next": ("inception_next_atto", 64, 2, False),
    "inception_resnet_v2": ("inception_resnet_v2", 96, 8, False),
    "inception_v3": ("inception_v3", 96, 8, False),
    "inception_v4": ("inception_v4", 96, 8, False),
    "lcnetv2": ("lcnetv2_small", 64, 2, False),
    "levit": ("levit_128s", 64, 8, True),
    "lowformer": ("lowformer_b0", 64, 2, False),
    "mambaout": ("test_mambaout", 32, 2, False),
    "maxxvit": ("test_coatnet", 32, 2, True),
    "metaformer": ("poolformerv2_s12", 32, 2, False),
    "mlp_mixer": ("gmlp_ti16_224", 32, 2, True),
    "mobilenetv3": ("lcnet_035", 64, 2, False),
    "mobilenetv5": ("mobilenetv5_base", 32, 2, False),
    "mobilevit": ("mobilevit_xxs", 64, 2, True),
    "mvitv2": ("mvitv2_tiny", 32, 2, True),
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", 32, 2, True),
    "nasnet": ("nasnetalarge", 64, 2, False),
    "nest": ("nest_tiny", 32, 2, True),
    "nextvit": ("nextvit_small", 64, 2, False),
    "nfnet": ("test_nfnet", 32, 2, False),
    "pit": ("pit_ti_224", 32, 2, True),
    "pnasnet": ("pnasnet5large", 64, 2, False),
    "pvt_v2": ("pvt_v2_b0", 32, 2, False),
    "qwen3_vit": ("qwen3_vit_88m", 32, 2, True),
    "rdnet": ("rdnet_tiny", 32, 2, False),
    "regnet": ("regnetx_002", 64, 2, False),
    "repghost": ("repghostnet_050", 64, 2, False),
    "repvit": ("repvit_m1", 64, 8, True),
    "res2net": ("res2next50", 64, 2, False),
    "resnest": ("resnest14d", 64, 8, False),
    "resnet": ("test_resnet", 64, 2, False),
    "resnetv2": ("resnetv2_18", 64, 2, False),
    "rexnet": ("rexnet_100", 64, 8, False),
    "selecsls": ("selecsls42", 64, 8, False),
    "senet": ("legacy_seresnet18", 64, 2, False),
    "sequencer": ("sequencer2d_s", 32, 2, True),
    "shvit": ("shvit_s1", 64, 8, False),
    "sknet": ("skresnet18", 64, 8, False),
    "starnet": ("starnet_s050", 64, 2, False),
    "swiftformer": ("swiftformer_xs", 64, 2, True),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 32, 2, True),
    "swin_transformer_v2": ("swinv2_tiny_window16_256", 32, 2, True),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 32, 2, True),
    "tiny_vit": ("tiny_vit_5m_224", 64, 2, False),
    "tnt": ("tnt_s_legacy_patch16_224", 32, 2, True),
    "tresnet": ("tresnet_m", 64, 2, False),
    "twins": ("twins_svt_small", 32, 2, True),
    "vgg": ("vgg11", 32, 2, False),
    "visformer": ("visformer_tiny", 64, 2, True),
    "vision_transformer": ("test_vit", 32, 2, True),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 32, 2, True),
    "vision_transformer_relpos": ("test_vit_relpos", 32, 2, True),
    "vision_transformer_sam": ("samvit_base_patch16_224", 32, 2, True),
    "vitamin": ("vitamin_small_224", 32, 2, True),
    "volo": ("volo_d1_224", 32, 2, True),
    "vovnet": ("ese_vovnet19b_slim_dw", 64, 2, False),
    "xception": ("legacy_xception", 64, 2, False),
    "xception_aligned": ("xception41p", 64, 2, False),
    "xcit": ("xcit_nano_12_p8_224", 32, 2, True),
    "deepseek_vit": ("deepseek_vit_412m", 56, 2, True),
}
"""By file: the model, the pixels and the number of images, and whether its constructor takes `img_size`.

The images are the smallest of 32, 64, 96, ... pixels that the model takes, and so many that its BatchNorms
see eight values of each channel, if it has any.
"""
NARROW: dict[str, dict[str, Any]] = {
    "beit": {"embed_dim": 192, "num_heads": 3},
    "vision_transformer_sam": {"embed_dim": 192, "num_heads": 3},
    "naflexvit": {"embed_dim": 192, "num_heads": 3},
    "qwen3_vit": {"embed_dim": 192, "num_heads": 3},
    "gemma4_vit": {"embed_dim": 192, "num_heads": 3},
    "deepseek_vit": {"embed_dim": 192, "num_heads": 3},
}
"""Models with more than 80 million parameters, at less width."""


def case(file: str) -> Case:
    name, pixels, rows, takes_size = MODELS[file]

    def make() -> torch.nn.Module:
        import timm

        size = {"img_size": pixels} if takes_size else {}
        return timm.create_model(name, num_classes=5, **size, **NARROW.get(file, {}))

    return Case(file, make, (normal(rows, 3, pixels, pixels),))


CASES = tuple(map(case, MODELS))
