"""Texts put together from pieces are those of tokenising the whole text; a length is filled to the unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem.tasks.pieces import Assembled, Pieces, Units, cut, fill, fill_exactly, joined
from pimem.tokens import Tokenizer

ODD = ["a.", "don't", "12", "3", "é", "\u0301z", "東京", "<|im_end|>", "...", "x y", "  ", "\n", "", "Naïve café.", "1."]


@settings(deadline=None, max_examples=150)
@given(parts=st.lists(st.sampled_from(ODD), max_size=120), joiner=st.sampled_from([" ", "\n", ""]))
def test_equal_to_the_whole(tokenizer: Tokenizer, parts: list[str], joiner: str) -> None:
    made = Pieces(tokenizer).assemble(cut(parts, joiner))
    assert made.text == joiner.join(parts)
    assert np.array_equal(made.ids, tokenizer.encode_long(made.text).ids)


@pytest.mark.parametrize("joiner", [" ", "\n"])
def test_plain_lines_are_put_together_and_spans_are_those_of_the_whole(tokenizer: Tokenizer, joiner: str) -> None:
    parts = [f"Line {n} says café number {n * 37}." for n in range(90)]
    pieces = cut(parts, joiner)
    made = Pieces(tokenizer).assemble(pieces)
    assert isinstance(made, Assembled)
    whole = tokenizer.encode_long(made.text)
    at = 0
    for part in parts:
        assert made.span(at, at + len(part)) == whole.span(at, at + len(part))
        at += len(part) + len(joiner)
    assert [joined(part, joiner) for part in parts[1:-1]] == pieces[1:-1]


def test_a_tokenizer_with_tokens_over_edges_gets_the_text_whole(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        ["of the sea. of the sea. of the sea."], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="!"))
    parts = ["of", "the", "sea."] * 30
    pieces = Pieces(tokenizer)
    made = pieces.assemble(cut(parts, " "))
    assert not isinstance(made, Assembled)
    assert np.array_equal(made.ids, tokenizer.encode(" ".join(parts)))

    def make(size: int):
        return pieces.assemble(cut(parts[:size], " "))

    filled, made = fill_exactly(20, lambda n: int(pieces.sizes(cut(parts[:n], " ")).sum()), make, 90)
    assert len(made.ids) == filled.tokens <= 20 < len(make(filled.units + 1).ids) == filled.one_more


@given(
    steps=st.lists(st.integers(0, 40), min_size=1, max_size=200),
    length=st.integers(0, 3000),
    most=st.none() | st.integers(0, 150),
)
def test_the_largest_size_that_fits(steps: list[int], length: int, most: int | None) -> None:
    sums = np.cumsum(steps)
    asked = []

    def count(size: int) -> int:
        asked.append(size)
        return 5 + int(sums[min(size, len(steps)) - 1] if size else 0) + 7 * max(0, size - len(steps))

    if length < 5:
        with pytest.raises(ValueError, match="5"):
            fill(length, count, most)
        return
    found = fill(length, count, most)
    right = max(n for n in range(700) if count(n) <= length and (most is None or n <= most))
    assert found.units == right
    assert found.tokens == count(right)
    assert found.one_more == (None if right == most else count(right + 1))


def test_a_long_search_looks_at_few_sizes() -> None:
    asked = []

    def count(size: int) -> int:
        asked.append(size)
        return 40 + 29 * size + size // 7

    assert fill(1_000_000, count).units == max(n for n in range(40_000) if 40 + 29 * n + n // 7 <= 1_000_000)
    assert len(asked) < 15


def test_units_are_counted_as_far_as_they_are_needed(tokenizer: Tokenizer) -> None:
    drawn = []

    def source():
        for n in range(1000):
            drawn.append(n)
            yield f"Sentence {n}."

    units = Units(source(), " ", Pieces(tokenizer))
    assert units.tokens(0) == 0
    assert units.tokens(7) == sum(len(tokenizer.encode(f" Sentence {n}.")) for n in range(7))
    assert units.tokens(3) == sum(len(tokenizer.encode(f" Sentence {n}.")) for n in range(3))
    assert drawn == list(range(7))
