"""Writes a tiny random Llama with a byte-level tokenizer, and random adapters for it, for a real vLLM on the CPU.

``tiny_model.py MODEL_FOLDER ADAPTER_FOLDER…`` runs in vLLM's environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CONTEXT = 2048
LAYERS, HIDDEN, HEADS, KV_HEADS = 4, 256, 4, 2
RANK = 8


def write_model(directory: str) -> None:
    import torch  # type: ignore[import-not-found]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
    from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog of the house"] * 8, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    template = (
        "{% for message in messages %}<|user|>{{ message['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": template,
        "model_max_length": CONTEXT,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        torch_dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


def write_adapter(directory: str, seed: int) -> None:
    """LoRA on the query and value projections, strong enough to change what a greedy answer says."""
    import torch
    from safetensors.torch import save_file  # type: ignore[import-not-found]

    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    head = HIDDEN // HEADS
    weights = {}
    for layer in range(LAYERS):
        for module, size in (("q_proj", HIDDEN), ("v_proj", KV_HEADS * head)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = (torch.randn(RANK, HIDDEN) * 0.5).to(torch.bfloat16)
            weights[f"{name}.lora_B.weight"] = (torch.randn(size, RANK) * 0.5).to(torch.bfloat16)
    save_file(weights, str(path / "adapter_model.safetensors"))
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (path / "adapter_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    write_model(sys.argv[1])
    for number, folder in enumerate(sys.argv[2:]):
        write_adapter(folder, number)
