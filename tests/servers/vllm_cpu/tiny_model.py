"""Writes a tiny Qwen2: configuration, random weights, and a tokenizer made from a seed.

    python tiny_model.py OUT

Weights are scaled by fan-in, so a greedy answer depends on the whole prompt. Runs in the server's
environment.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import (  # type: ignore[import-not-found]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

VOCABULARY, HIDDEN, LAYERS, HEAD = 2048, 256, 2, 64
END = "<|endoftext|>"


def text() -> Iterator[str]:
    """Yield lines of made-up words."""
    chance = random.Random(0)
    syllables = [a + b for a in "bcdfglmnprstvw" for b in "aeiou"]
    words = ["".join(chance.choices(syllables, k=chance.randint(2, 4))) for _ in range(3000)]
    for _ in range(2000):
        yield " ".join(chance.choices(words, k=16)) + "."


def main() -> None:
    """Write the folder."""
    out = Path(sys.argv[1])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.save_pretrained(out)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=HIDDEN // HEAD // 2,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.dim() > 1:
                each.normal_(std=1.0 if "embed_tokens" in name else each.shape[1] ** -0.5)
    model.save_pretrained(out)


if __name__ == "__main__":
    main()
