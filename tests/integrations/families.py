"""Tiny models of eight families of transformers, with random weights: nothing is downloaded."""

import torch

SIZES = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "max_position_embeddings": 64,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
WINDOW = 5
LAYERS = ["sliding_attention", "full_attention"]
CONFIGS = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", {"sliding_window": WINDOW, "layer_types": LAYERS,
                                "query_pre_attn_scalar": 16,
                                "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": WINDOW, "layer_types": LAYERS,
                                    "query_pre_attn_scalar": 16}),
    "qwen3": ("Qwen3Config", {}),
    "gpt_oss": ("GptOssConfig", {"sliding_window": WINDOW, "layer_types": LAYERS,
                                 "num_local_experts": 2,
                                 "num_experts_per_tok": 1}),
    "llama4": ("Llama4TextConfig", {"attention_chunk_size": 6, "num_local_experts": 2,
                                    "num_experts_per_tok": 1,
                                    "intermediate_size_mlp": 48, "no_rope_layers": [1, 0]}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
                            "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
}


def model_of(family: str, attention: str = "eager"):
    """Return a model of a family; the same weights in every call, scores far from flat."""
    import transformers

    name, more = CONFIGS[family]
    sizes = SIZES | more
    if family == "gpt2":
        sizes = {name: sizes[name] for name in (*more, "vocab_size", "pad_token_id", "bos_token_id",
                                                "eos_token_id")}
    config = getattr(transformers, name)(**sizes)
    config._attn_implementation = attention
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    numbers = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:                          # of sinks, too, which a config leaves empty
                size = 1.0 if "sinks" in name else 0.25
                weight.copy_(torch.randn(weight.shape, generator=numbers) * size)
    return model


def tokens(B: int, N: int):
    """Return B sequences of N tokens, none of them padding."""
    return torch.randint(2, 100, (B, N), generator=torch.Generator().manual_seed(2))


def padding(N: int, *lengths: int, side: str):
    """Return an attention mask (B, N) for sequences of these lengths."""
    j = torch.arange(N)
    return torch.stack([(j >= N - n) if side == "left" else (j < n) for n in lengths]).long()
