"""The byte-level BPE of the demonstration checkpoints: every story word is one token."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.demo.language import story_words
from tests.demo.words import COMMON_WORDS

MAX_LENGTH = 128
SPECIALS: dict[str, dict[str, str]] = {
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "llama": {"bos_token": "<s>", "eos_token": "</s>"},
    "bert": {
        "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
    },
}  # fmt: skip


def build_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which every story word and common word is one token."""
    special = SPECIALS[family]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        special_tokens=list(dict.fromkeys(special.values())),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = list(dict.fromkeys(story_words() + COMMON_WORDS))
    tokenizer.train_from_iterator(words, trainer)
    first = special.get("bos_token") or special["cls_token"]
    last = special.get("sep_token")
    template = f"{first} $A" + (f" {last}" if last else "")
    template_ids = [
        (t, tokenizer.token_to_id(t)) for t in dict.fromkeys(filter(None, (first, last)))
    ]
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=template, special_tokens=template_ids),
    ])  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_LENGTH,
        add_prefix_space=True,
        clean_up_tokenization_spaces=False,
        **special,
    )
