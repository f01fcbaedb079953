"""The frame: each file of a model in the libraries, and why one has no pair."""

from __future__ import annotations

EQXVISION = (
    *(f"classification/{name}" for name in (
        "alexnet", "convnext", "densenet", "efficientnet", "googlenet", "mobilenetv2", "mobilenetv3",
        "regnet", "resnet", "shufflenetv2", "squeezenet", "swin", "vgg", "vit")),
    *(f"segmentation/{name}" for name in ("deeplabv3", "fcn", "lraspp")),
)  # fmt: skip
BONSAI = (
    "convnext", "densenet121", "dinov3", "efficientnet", "gemma3", "llada", "mamba2", "qwen3", "qwen3_vl",
    "resnet", "sam2", "umt5", "unet", "vae", "vgg19", "vit", "vjepa2", "whisper",
)  # fmt: skip
BIG_VISION = (
    "bit", "bit_paper", "mlp_mixer", "ppp/gemma", "vit", "proj/cappa/cappa", "proj/clippo/one_tower",
    "proj/flaxformer/bert", "proj/flexi/vit", "proj/givt/adaptor", "proj/givt/cnn", "proj/givt/givt",
    "proj/givt/vit", "proj/image_text/naflex_vit", "proj/image_text/text_transformer",
    "proj/image_text/two_towers", "proj/jet/jet", "proj/jetformer/jetformer", "proj/paligemma/gemma_bv",
    "proj/paligemma/paligemma", "proj/uvim/vit", "proj/uvim/vtt",
)  # fmt: skip
FRAME = (
    *(f"eqxvision/models/{name}.py" for name in EQXVISION),
    *(f"bonsai/bonsai/models/{name}/modeling.py" for name in BONSAI),
    "jax-resnet/jax_resnet/resnet.py",
    "jax-resnet/jax_resnet/splat.py",
    *(f"vision_transformer/vit_jax/models_{name}.py" for name in ("lit", "mixer", "resnet", "vit")),
    *(f"big_vision/big_vision/models/{name}.py" for name in BIG_VISION),
    "nanodo/nanodo/model.py",
    *(f"dm-haiku/haiku/_src/nets/{name}.py" for name in ("mlp", "mobilenetv1", "resnet", "vqvae")),
)
NONE = "no twin in torchvision, timm or transformers"
BIG_VISIONS_OWN = (
    "cappa/cappa", "clippo/one_tower", "givt/adaptor", "givt/cnn", "givt/givt", "givt/vit", "jet/jet",
    "jetformer/jetformer", "uvim/vit", "uvim/vtt",
)  # fmt: skip
REASONS = {
    "bonsai/bonsai/models/llada/modeling.py": "the twin is a checkpoint's own code",
    "bonsai/bonsai/models/unet/modeling.py": NONE,
    "bonsai/bonsai/models/vae/modeling.py": "the twin is in diffusers",
    "vision_transformer/vit_jax/models_lit.py": NONE,
    **{f"big_vision/big_vision/models/proj/{name}.py": NONE for name in BIG_VISIONS_OWN},
    "big_vision/big_vision/models/proj/flaxformer/bert.py": "a wrapper of another library",
    "big_vision/big_vision/models/proj/paligemma/gemma_bv.py": "a wrapper of ppp/gemma.py",
    "nanodo/nanodo/model.py": NONE,
    "dm-haiku/haiku/_src/nets/vqvae.py": NONE,
}
