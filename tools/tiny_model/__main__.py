"""`python -m tiny_model FOLDER`: config, weights and tokenizer, the same ones each time. Runs where vLLM is installed.

The weights are scaled so that logits differ and outputs vary; the special tokens' rows of the head are zero, so that
greedy decoding never ends by itself.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 64, 176, 2, 4, 2, 32, 2048
SPECIALS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    **IDS,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN, 1.5),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN, 1.5),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN, 2.0),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD, 2.0),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN, 1.0),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN, 1.0),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE, 2.0),
}


def weights() -> dict[str, torch.Tensor]:
    """Seeded."""
    generator = torch.Generator().manual_seed(1234)

    def draw(rows: int, columns: int, gain: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * gain / math.sqrt(columns)

    ones = torch.ones(HIDDEN)
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=generator),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": draw(VOCABULARY, HIDDEN, 3.0),
    }
    tensors["lm_head.weight"][: len(SPECIALS)] = 0
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = ones.clone()
        for name, shape in SHAPES.items():
            tensors[f"{prefix}{name}.weight"] = draw(*shape)
    return tensors


def tokenizer() -> Tokenizer:
    """Byte-level pairs learnt from this file's own text, filled up with made-up words."""
    model = Tokenizer(BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrstx"]
    words = [f" {first}{second}" for first in syllables[::5] for second in syllables[::9]]
    model.train_from_iterator([Path(__file__).read_text(), *words], trainer)
    return model


def main() -> None:
    """Write the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(), folder / "model.safetensors", {"format": "pt"})
    tokenizer().save(str(folder / "tokenizer.json"))
    names = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "pad_token": SPECIALS[0]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **names}
    for name, content in (
        ("config.json", CONFIG),
        ("generation_config.json", IDS),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content))


if __name__ == "__main__":
    main()
