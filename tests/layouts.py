"""SDXL and Stable Diffusion 3 as one file, with the names of tensors of the original releases."""

import re

import diffusers
import torch
import transformers

from tests import models, single_file

Tensors = dict[str, torch.Tensor]
LABELS = {"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"}
OPEN_CLIP = {
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "final_layer_norm": "ln_final",
    "encoder.layers.": "transformer.resblocks.",
    "self_attn.": "attn.",
    "layer_norm": "ln_",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
MMDIT = {
    r"^pos_embed\.pos_embed$": "pos_embed",
    r"^pos_embed\.": "x_embedder.",
    r"^time_text_embed\.timestep_embedder\.": "t_embedder.",
    r"^time_text_embed\.text_embedder\.": "y_embedder.",
    r"linear_1\.": "mlp.0.",
    r"linear_2\.": "mlp.2.",
    r"^proj_out\.": "final_layer.linear.",
    r"^norm_out\.linear\.": "final_layer.adaLN_modulation.1.",
    r"^transformer_blocks\.(\d+)\.": r"joint_blocks.\1.",
    r"\.norm1\.linear\.": ".x_block.adaLN_modulation.1.",
    r"\.norm1_context\.linear\.": ".context_block.adaLN_modulation.1.",
    r"\.attn\.to_out\.0\.": ".x_block.attn.proj.",
    r"\.attn\.to_add_out\.": ".context_block.attn.proj.",
    r"\.ff\.net\.0\.proj\.": ".x_block.mlp.fc1.",
    r"\.ff\.net\.2\.": ".x_block.mlp.fc2.",
    r"\.ff_context\.net\.0\.proj\.": ".context_block.mlp.fc1.",
    r"\.ff_context\.net\.2\.": ".context_block.mlp.fc2.",
    r"\.attn\.to_([qkv])\.": r".x_block.attn.qkv.\1.",
    r"\.attn\.add_([qkv])_proj\.": r".context_block.attn.qkv.\1.",
}


def _large_clip() -> models.Untyped:
    """A CLIP wider than the first: by its width, diffusers tells them apart."""
    config = models.tiny_clip()
    config.hidden_size = config.projection_dim = 2 * models.WIDE
    return transformers.CLIPTextModelWithProjection(config)


def sdxl() -> models.Untyped:
    """A tiny SDXL whose encoders differ in width."""
    wide = models.WIDE
    more = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 2 * wide,
    }
    return diffusers.StableDiffusionXLPipeline(
        vae=models.tiny_vae(latent_channels=4),
        text_encoder=transformers.CLIPTextModel(models.tiny_clip()),
        text_encoder_2=_large_clip(),
        tokenizer=models.clip_tokenizer(),
        tokenizer_2=models.clip_tokenizer(),
        unet=models.tiny_unet(3 * wide, **more),
        scheduler=diffusers.EulerDiscreteScheduler(),
    )


def sd3() -> models.Untyped:
    """A tiny Stable Diffusion 3 whose encoders differ in width."""
    pipe = models.pipe("sd3")
    encoder = transformers.CLIPTextModelWithProjection(models.tiny_clip())
    with torch.no_grad():  # files have none of this encoder, and diffusers takes this
        encoder.text_projection.weight.copy_(torch.eye(models.WIDE))
    pipe.register_modules(text_encoder=encoder, text_encoder_2=_large_clip())
    return pipe


def sdxl_tensors(pipe: models.Untyped) -> Tensors:
    """What a file of SDXL holds, with the leftovers that files have."""
    single_file.UNET_ENDS |= LABELS
    prefix = "conditioner.embedders."
    return {
        **_prefixed("model.diffusion_model.", dict(single_file._unet_tensors(pipe.unet))),
        **_vae(pipe),
        **_clip(pipe.text_encoder, f"{prefix}0.transformer."),
        **_prefixed(f"{prefix}1.model.", _open_clip(pipe.text_encoder_2)),
        f"{prefix}0.transformer.text_model.embeddings.position_ids": torch.arange(24)[None],
        f"{prefix}0.logit_scale": torch.ones(()),
        f"{prefix}1.model.logit_scale": torch.ones(()),
        "alphas_cumprod": torch.ones(1000),
        "denoiser.sigmas": torch.ones(1000),
        "model_ema.decay": torch.ones(()),
        "first_stage_model.loss.logvar": torch.ones(()),
    }


def sd3_tensors(pipe: models.Untyped) -> Tensors:
    """What a file of Stable Diffusion 3 with its encoders holds."""
    texts = "text_encoders."
    five = pipe.text_encoder_3.state_dict()
    return {
        **_prefixed("model.diffusion_model.", _mmdit(pipe.transformer.state_dict())),
        **_vae(pipe),
        **_clip(pipe.text_encoder, f"{texts}clip_l.transformer."),
        **_clip(pipe.text_encoder_2, f"{texts}clip_g.transformer."),
        **_prefixed(f"{texts}t5xxl.transformer.", _without(five, "encoder.embed_tokens.weight")),
        f"{texts}clip_l.logit_scale": torch.ones(()),
        f"{texts}clip_g.logit_scale": torch.ones(()),
        f"{texts}t5xxl.logit_scale": torch.ones(()),
    }


def _prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _without(tensors: Tensors, name: str) -> Tensors:
    return {each: tensor for each, tensor in tensors.items() if each != name}


def _vae(pipe: models.Untyped) -> Tensors:
    return _prefixed("first_stage_model.", dict(single_file._vae_tensors(pipe.vae.state_dict())))


def _clip(encoder: models.Untyped, prefix: str) -> Tensors:
    tensors = {}
    for name, tensor in encoder.state_dict().items():
        is_inner = not name.startswith(("text_model.", "text_projection"))
        tensors[f"{prefix}text_model.{name}" if is_inner else prefix + name] = tensor
    return tensors


def _open_clip(encoder: models.Untyped) -> Tensors:
    tensors: Tensors = {}
    for name, tensor in encoder.state_dict().items():
        original = name.removeprefix("text_model.")
        for part, its_name in OPEN_CLIP.items():
            original = original.replace(part, its_name)
        tensors[original] = tensor
    tensors["text_projection"] = tensors.pop("text_projection.weight").T
    return _joined(tensors, r"\.([qkv])_proj\.", ".in_proj_")


def _mmdit(weights: Tensors) -> Tensors:
    blocks = max(int(each[1]) for each in re.finditer(r"blocks\.(\d+)", " ".join(weights)))
    tensors: Tensors = {}
    for name, tensor in weights.items():
        is_swapped = name.startswith(("norm_out.", f"transformer_blocks.{blocks}.norm1_context."))
        original = name
        for pattern, its_name in MMDIT.items():
            original = re.sub(pattern, its_name, original)
        swapped = torch.cat(tensor.chunk(2)[::-1]) if is_swapped else tensor
        tensors[original] = swapped
    return _joined(tensors, r"\.qkv\.([qkv])\.", ".qkv.")


def _joined(tensors: Tensors, pattern: str, its_name: str) -> Tensors:
    """The tensors of queries, keys and values as one."""
    joined: Tensors = {}
    for name, tensor in tensors.items():
        match = re.search(pattern, name)
        if match is None:
            joined[name] = tensor
        elif match[1] == "q":
            start, end = name[: match.start(1)], name[match.end(1) :]
            parts = [tensors[start + letter + end] for letter in "qkv"]
            joined[re.sub(pattern, its_name, name)] = torch.cat(parts)
    return joined
