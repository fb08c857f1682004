"""A small Llama with random weights, its own tokenizer and chat template: `llm.yaml`'s model.

`python -m examples.make_llm FOLDER [--hidden N --layers N --vocabulary N --context N]` writes what
any engine takes as a Hugging Face model:

    config.json  generation_config.json  model.safetensors (float32)
    tokenizer.json (byte-level BPE, trained on sentences made here)  tokenizer_config.json

What it writes makes no sense and is the same for the same prompt: weights are drawn so that the
likeliest token stands well apart from the next, whatever the order in which an engine adds up.
Seeded; the same sizes make the same files, byte for byte. Needs no more than Headrace itself.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 7
END = "<|end|>"
PAD = "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")
TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SENTENCES = 4000
_NOUNS = (
    "water wheel channel river mill stone turbine gate flow stream tenant queue batch token model "
    "request answer engine bucket deadline replica gateway prompt sentence number burst tail"
)
_VERBS = "turns feeds waits carries fills opens closes shares holds brings measures serves"
_PLACES = "before behind through under beside within after against along between"
_OTHERS = "every short long slow quick even ragged warm cold small large last first"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """hidden: a multiple of 64, which is the width of a head; vocabulary: at least 300 tokens;
    context: the most tokens of a prompt and its output."""

    hidden: int = 128
    layers: int = 2
    vocabulary: int = 1024
    context: int = 2048

    @property
    def heads(self) -> int:
        return self.hidden // 64

    @property
    def inner(self) -> int:
        return self.hidden * 2


def make(folder: Path, sizes: Sizes | None = None) -> Path:
    """Fills the folder, which is made where it is missing; returns it."""
    sizes = sizes or Sizes()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(sizes.vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    _write(folder / "tokenizer_config.json", _tokenizer_config(sizes))
    _write(folder / "config.json", _config(sizes, end, pad))
    _write(folder / "generation_config.json", {"eos_token_id": end, "pad_token_id": pad})
    save_file(_weights(sizes), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tokenizer(vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END, *(f"<|{role}|>" for role in ROLES)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    return tokenizer


def _sentences() -> list[str]:
    drawn = random.Random(SEED)
    nouns, verbs, places, others = (w.split() for w in (_NOUNS, _VERBS, _PLACES, _OTHERS))

    def one() -> str:
        words = [
            "the", drawn.choice(others), drawn.choice(nouns), drawn.choice(verbs), "the",
            drawn.choice(nouns), drawn.choice(places), drawn.choice(others),
            drawn.choice(nouns) + "s", str(drawn.randrange(10_000)),
        ]  # fmt: skip
        return " ".join(words).capitalize() + "."

    return [one() for _ in range(_SENTENCES)]


def _tokenizer_config(sizes: Sizes) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": sizes.context,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }


def _config(sizes: Sizes, end: int, pad: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": max(1, sizes.heads // 2),
        "head_dim": 64,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "eos_token_id": end,
        "pad_token_id": pad,
        "bos_token_id": None,
    }


def _weights(sizes: Sizes) -> dict[str, Array]:
    drawn = np.random.default_rng(SEED)
    hidden, inner = sizes.hidden, sizes.inner
    values = max(1, sizes.heads // 2) * 64

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Array:
        """[rows, columns]; a unit input gives outputs of about `scale`."""
        made = drawn.standard_normal((rows, columns), dtype=np.float32)
        return made * np.float32(scale / columns**0.5)

    ones = np.ones(hidden, dtype=np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(sizes.vocabulary, hidden, hidden**0.5),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(sizes.vocabulary, hidden, 4.0),
    }
    for layer in range(sizes.layers):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": ones,
            f"{name}.post_attention_layernorm.weight": ones,
            f"{name}.self_attn.q_proj.weight": matrix(sizes.heads * 64, hidden),
            f"{name}.self_attn.k_proj.weight": matrix(values, hidden),
            f"{name}.self_attn.v_proj.weight": matrix(values, hidden),
            f"{name}.self_attn.o_proj.weight": matrix(hidden, sizes.heads * 64, 2.0),
            f"{name}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{name}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{name}.mlp.down_proj.weight": matrix(hidden, inner, 2.0),
        }
    return weights


def _write(path: Path, page: dict[str, Any]) -> None:
    path.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    defaults = Sizes()
    for name in ("hidden", "layers", "vocabulary", "context"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    asked = parser.parse_args()
    sizes = Sizes(asked.hidden, asked.layers, asked.vocabulary, asked.context)
    if sizes.hidden < 64 or sizes.hidden % 64:
        parser.error(f"--hidden is {sizes.hidden}; must be a multiple of 64")
    if sizes.vocabulary < 300 or sizes.layers < 1 or sizes.context < 16:
        parser.error("--vocabulary must be at least 300, --layers 1, --context 16")
    make(asked.folder, sizes)
    print(f"made {asked.folder}")


if __name__ == "__main__":
    main()
