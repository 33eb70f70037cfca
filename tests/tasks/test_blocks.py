"""Contexts put together from paragraphs are those of tokenising the whole text, or are not used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem import data, models
from pimem.config import ModelSpec, TaskSpec
from pimem.corpora import Corpus, Paragraph
from pimem.corpora import corpus as make_corpus
from pimem.tasks import base, blocks
from pimem.tasks.hotpotqa import render
from pimem.tokens import Tokenizer

ODD = ["", " ", "\n", ".", "x ", " y", "\n\n", "12", "é", "\u0301z", "Document", "Document 7:\n", "東", "<|im_end|>", "a.\n"]


@settings(deadline=None, max_examples=60)
@given(order=st.lists(st.integers(0, 179), min_size=2, max_size=60, unique=True))
def test_equal_to_the_whole(tokenizer: Tokenizer, corpus: Corpus, order: list[int]) -> None:
    order = [i for i in order if i < len(corpus.paragraphs)] or [0]
    shown = render(corpus, order)
    made = blocks.load(corpus, tokenizer, make=True)
    assert made is not None
    together = made.assemble(order, shown.text, shown.starts)
    whole = tokenizer.encode_long(shown.text)
    assert together is not None
    assert np.array_equal(together.ids, whole.ids)
    for at, body in enumerate(shown.bodies):
        assert together.span(shown.starts[at], body) == whole.span(shown.starts[at], body)
        assert together.span(body, body + 9) == whole.span(body, body + 9)


@settings(deadline=None, max_examples=60)
@given(paragraphs=st.lists(st.tuples(st.sampled_from(ODD), st.sampled_from(ODD)), min_size=2, max_size=12, unique=True))
def test_odd_paragraphs_are_equal_or_refused(tokenizer: Tokenizer, paragraphs: list[tuple[str, str]]) -> None:
    own = [Paragraph(title, (text,)) for title, text in paragraphs]
    small = make_corpus([("q", "?", ("a",), own, [(own[0].title, 0)], "")])
    order = list(range(len(small.paragraphs)))
    shown = render(small, order)
    made = blocks.load(small, tokenizer, make=True)
    assert made is not None
    together = made.assemble(order, shown.text, shown.starts)
    if together is not None:
        assert np.array_equal(together.ids, tokenizer.encode_long(shown.text).ids)


def test_a_task_makes_the_same_sample_either_way(
    tokenizer: Tokenizer, tmp_path: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    (tmp_path / "data").symlink_to(small_home / "data")
    (whole,) = base.build(TaskSpec(length=50), tokenizer).samples(1)
    assert not list((tmp_path / "built").glob("paragraphs-*"))
    monkeypatch.setattr(blocks, "WORTHWHILE", 50)
    (together,) = base.build(TaskSpec(length=50), tokenizer).samples(1)
    assert list((tmp_path / "built").glob("paragraphs-*"))
    assert np.array_equal(whole.context_ids, together.context_ids)
    assert whole.evidence == together.evidence


@pytest.mark.data
@pytest.mark.usefixtures("real_home")
def test_real_documents_are_equal_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default model's tokenizer merges line breaks, the tiny one does not."""
    if not (models.home() / "models" / "smollm2-135m").exists():
        pytest.skip("needs: pimem models fetch smollm2-135m")
    tokenizer, real = Tokenizer.load(models.resolve(ModelSpec())), data.corpus("hotpotqa")
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    few = dataclasses.replace(real, paragraphs=real.paragraphs[:300], hash="of 300")
    made = blocks.load(few, tokenizer, make=True)
    assert made is not None
    for size in (1, 19, 20, 21, 300):
        shown = render(few, list(range(size)))
        together = made.assemble(list(range(size)), shown.text, shown.starts)
        assert together is not None
        assert np.array_equal(together.ids, tokenizer.encode_long(shown.text).ids)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("real_home")
def test_3_8_million_real_tokens_are_equal_to_the_whole() -> None:
    if not (models.home() / "models" / "smollm2-135m").exists():
        pytest.skip("needs: pimem models fetch smollm2-135m")
    tokenizer, corpus = Tokenizer.load(models.resolve(ModelSpec())), data.corpus("hotpotqa")
    made = blocks.load(corpus, tokenizer, make=True)
    assert made is not None
    order = [int(i) for i in base.Draw("real").order(len(corpus.paragraphs))[:25_600]]
    shown = render(corpus, order)
    together = made.assemble(order, shown.text, shown.starts)
    assert together is not None
    assert np.array_equal(together.ids, tokenizer.encode_long(shown.text).ids)
