"""Writes a tiny random Llama with a byte-level tokenizer, for a real vLLM on the CPU. Runs in vLLM's environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path

CONTEXT = 2048


def main(directory: str) -> None:
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
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        torch_dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)


if __name__ == "__main__":
    main(sys.argv[1])
