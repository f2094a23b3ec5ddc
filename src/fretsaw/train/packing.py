"""Text to token ids: packed sequences without padding, and whether two vocabularies agree."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from fretsaw.errors import CheckpointError, DataError
from fretsaw.train.data import TextSource, fingerprint
from fretsaw.train.found import FoundText

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")

CHARS_PER_TOKEN = 6
"""First guess at how much text is needed; doubled for as long as it was too little."""

SCAN_FACTOR = 20
"""At most this many times the needed text is looked through for the documents to take."""

BATCH_DOCUMENTS = 64


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder; no code from the folder is run.

    Raises:
        CheckpointError: there is none, it cannot be read, or it has no end-of-text token.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer (tokenizer.json)",
            "copy the tokenizer files of the model into the folder",
        )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder,
            config=PreTrainedConfig(),  # that of the folder may name a model that needs own code
            trust_remote_code=False,
            local_files_only=True,
        )
    except (ValueError, OSError, KeyError) as error:
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read: {error}",
            'a tokenizer.json and a tokenizer_config.json that says "tokenizer_class": '
            '"PreTrainedTokenizerFast" are enough',
        ) from error
    if tokenizer.eos_token_id is None:
        raise CheckpointError(
            f"the tokenizer in {folder} names no end-of-text token",
            'set "eos_token" in tokenizer_config.json: it joins documents',
        )
    return tokenizer


@dataclass(frozen=True)
class Wanted:
    """How much text is wanted, and in what order.

    Attributes:
        num_sequences: Sequences wanted.
        sequence_length: Tokens in each.
        seed: Of the order.
        vocab_size: Token ids must lie below it.
        min_sequences: If the text is too short, this many are enough; default: all.
    """

    num_sequences: int
    sequence_length: int
    seed: int
    vocab_size: int
    min_sequences: int | None = None


@dataclass(frozen=True)
class ReadText:
    """A text as token ids, and what was found on the way.

    Attributes:
        ids: (sequences, sequence_length) int64, no padding.
        found: Files, documents, and what was repaired, skipped or ignored.
        documents: Fingerprints of the documents that the ids come from.
    """

    ids: Tensor
    found: FoundText
    documents: frozenset[int]


def read_text(
    source: TextSource, tokenizer: PreTrainedTokenizerBase, *, wanted: Wanted
) -> ReadText:
    """A split of a data set as packed token ids; see `pack`.

    Raises:
        DataError: the text is damaged or too short; says which text.
        CheckpointError: the tokenizer gives ids that the model has no embedding for.
    """
    try:
        ids, documents = _packed(source, tokenizer, wanted=wanted)
    except DataError as error:
        found = "; ".join(source.found(tokens=0).warnings())
        message = f"{source.describe()}: {error.message}" + (f" ({found})" if found else "")
        raise DataError(message, error.hint) from error
    return ReadText(ids, source.found(tokens=ids.numel()), frozenset(map(fingerprint, documents)))


def pack(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_sequences: int,
    sequence_length: int,
    seed: int,
    vocab_size: int,
    min_sequences: int | None = None,
) -> Tensor:
    """Documents in random order, joined by the end-of-text token and cut into equal sequences.

    Which documents are taken, and in which order, follows from the seed and their text, not from
    their order on disk: those with the smallest keyed hash come first, among the first
    `SCAN_FACTOR` times the needed text. Memory holds what is needed, not the data set. Own.

    Args:
        texts: Documents; read again from the start if the first look took too few.
        tokenizer: Fast tokenizer of the model.
        num_sequences: See `Wanted`, as all that follow.
        sequence_length: Tokens in each.
        seed: Of the order.
        vocab_size: Token ids must lie below it.
        min_sequences: That are enough; default: all.

    Returns:
        (sequences, sequence_length) int64, no padding.

    Raises:
        DataError: the text is too short; says how many tokens there are.
        CheckpointError: the tokenizer gives ids that the model has no embedding for.
    """
    wanted = Wanted(num_sequences, sequence_length, seed, vocab_size, min_sequences)
    return _packed(texts, tokenizer, wanted=wanted)[0]


def _packed(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, wanted: Wanted
) -> tuple[Tensor, list[str]]:
    """Sequences, and the documents that they come from."""
    need = wanted.num_sequences * wanted.sequence_length
    chars = need * CHARS_PER_TOKEN
    while True:
        documents, is_all = _choose(texts, chars=chars, seed=wanted.seed)
        ids, num_used = _tokenize(documents, tokenizer, need=need)
        if len(ids) >= need or is_all:
            break
        chars *= 2
    found = len(ids) // wanted.sequence_length
    least = wanted.num_sequences if wanted.min_sequences is None else wanted.min_sequences
    if found < least:
        raise DataError(
            f"the text is too short: {len(ids):,} tokens found, {need:,} needed "
            f"({wanted.num_sequences} sequences of {wanted.sequence_length})",
            "give more text, or ask for fewer or shorter sequences in the recipe",
        )
    if (largest := max(ids)) >= wanted.vocab_size or min(ids) < 0:
        raise CheckpointError(
            f"the tokenizer gives token id {largest}, but the model has {wanted.vocab_size} "
            "embeddings",
            "the tokenizer does not belong to this model: copy the right one into the folder",
        )
    kept = min(found, wanted.num_sequences)
    taken = torch.tensor(ids[: kept * wanted.sequence_length], dtype=torch.int64)
    return taken.view(kept, -1), documents[:num_used]


def _choose(texts: Iterable[str], *, chars: int, seed: int) -> tuple[list[str], bool]:
    """Documents with the smallest keyed hashes, in that order, until they hold `chars` characters.

    The flag says whether these are all documents that there are.
    """
    kept: list[tuple[int, int, str]] = []
    size = scanned = 0
    is_all = True
    for i, text in enumerate(texts):
        if scanned >= SCAN_FACTOR * chars:
            is_all = False
            break
        scanned += len(text)
        heapq.heappush(kept, (-_keyed_hash(text, seed), i, text))
        size += len(text)
        while size - len(kept[0][2]) >= chars:
            size -= len(heapq.heappop(kept)[2])
            is_all = False
    return [text for _, _, text in sorted(kept, key=lambda item: (-item[0], item[2]))], is_all


def _keyed_hash(text: str, seed: int) -> int:
    key = seed.to_bytes(8, "big")
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big")


def _tokenize(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, need: int
) -> tuple[array[int], int]:
    """Ids of the first documents, until there are enough, and the number of these documents."""
    ids, num_used = array("q"), 0
    for batch in _batches(texts):
        num_used += len(batch)
        encoded = tokenizer(batch, add_special_tokens=False, verbose=False)["input_ids"]
        for document in encoded:
            ids.extend([*document, tokenizer.eos_token_id])
        if len(ids) >= need:
            break
    return ids, num_used


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while batch := list(itertools.islice(stream, BATCH_DOCUMENTS)):
        yield batch


def shared_vocab(
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    *,
    student_size: int,
    teacher_size: int,
) -> int:
    """Token ids on which two models can be compared: all of them, or those below the padding.

    Args:
        student: Its tokenizer.
        teacher: Its tokenizer.
        student_size: Rows of the student's head.
        teacher_size: Rows of the teacher's head; the larger of the two may be padded.

    Returns:
        The smaller size; logits beyond it are left out and the rest renormalised.

    Raises:
        CheckpointError: the tokenizers disagree, or have more tokens than the smaller head.
    """
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    shared = min(student_size, teacher_size)
    if ours != theirs:
        odd = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[1])
        raise CheckpointError(
            f"student and teacher have different tokenizers: {len(ours)} and {len(theirs)} tokens, "
            f"first difference at id {odd[1]} ({odd[0]!r})",
            "distil from the parent that the student was cut from",
        )
    if len(ours) and (largest := max(ours.values())) >= shared and student_size != teacher_size:
        raise CheckpointError(
            f"student and teacher have {student_size} and {teacher_size} logits, and the tokenizer "
            f"uses ids up to {largest}: the difference is no padding",
            "distil from the parent that the student was cut from",
        )
    return shared
