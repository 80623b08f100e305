"""`python load_tokenizer.py FOLDER`: a tokenizer for load generators that would fetch one, made where they are.

Byte pairs learnt from made-up words: a token is about four characters, as engine-sim counts. No network.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

_END = "<|end|>"
_CHAT = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def main() -> None:
    """Write the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=2048, special_tokens=[_END], initial_alphabet=alphabet, show_progress=False)
    words = [f" {a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrstx"]
    made.train_from_iterator([*words, *words], trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END, "pad_token": _END}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": _CHAT}))
    # Some look for a model's kind before its tokenizer.
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": made.get_vocab_size()}))


if __name__ == "__main__":
    main()
