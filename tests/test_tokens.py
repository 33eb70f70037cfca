"""Tokenising: long texts equal short ones, spans, windows, inert control tokens, over several kinds of tokenizers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimem import tokens
from pimem.errors import ConfigError, DataError
from pimem.tokens import Tokenizer, digest, windows

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRAINING = (
    "The quick brown fox jumps over the lazy dog.",
    "A lighthouse keeper in Brest wrote 1234567890 letters, and none was answered.",
    "Call me Ishmael. Some years ago, in 1851, I'd thought I'll sail about a little.",
    "北京 в Москве שלום 😀 " * 3,
)
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(split: bool) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    hf = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if split:
        hf.normalizer = normalizers.NFC()
        parts = [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
        hf.pre_tokenizer = pre_tokenizers.Sequence(parts)
    else:
        hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    hf.post_processor = processors.ByteLevel(trim_offsets=False)
    hf.train_from_iterator(
        TRAINING,
        trainers.BpeTrainer(vocab_size=420, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False),
    )
    return hf


def _marked(always: bool) -> Any:
    """BPE over blanks turned into marks; `always` puts one more before every text, as a normalizer of older models does."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    hf = Tokenizer(models.BPE(unk_token="<|endoftext|>", byte_fallback=False, fuse_unk=True))
    if always:
        hf.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        hf.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        hf.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        hf.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=list(SPECIAL), show_progress=False)
    words = [word for text in TRAINING for word in text.split()] if always else TRAINING
    hf.train_from_iterator(words, trainer)
    return hf


def _word_piece() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    hf = Tokenizer(models.WordPiece(unk_token="<|endoftext|>"))
    hf.normalizer = normalizers.BertNormalizer()
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(SPECIAL), show_progress=False)
    hf.train_from_iterator(TRAINING, trainer)
    return hf


MAKERS: dict[str, Callable[[], Any]] = {
    "byte_level": lambda: _byte_level(split=False),
    "byte_level_split": lambda: _byte_level(split=True),
    "metaspace": lambda: _marked(always=False),
    "prepended": lambda: _marked(always=True),
    "word_piece": _word_piece,
}
_made: dict[str, Tokenizer] = {}


def make(kind: str) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    if kind not in _made:
        hf = PreTrainedTokenizerFast(
            tokenizer_object=MAKERS[kind](),
            eos_token="<|im_end|>",
            unk_token="<|endoftext|>",
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
        )
        _made[kind] = Tokenizer(hf)
    return _made[kind]


@pytest.fixture(params=MAKERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make(request.param)


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few dozen characters, so that short texts have many seams."""
    monkeypatch.setattr(tokens, "SEGMENT_CHARS", 40)
    monkeypatch.setattr(tokens, "PROBE_CHARS", 24)


def prose(words: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    pool = " ".join(TRAINING).split()
    ends = (" ", " ", " ", " ", "  ", "\n", ".\n\n", ", ", "\t", "\r\n")
    return "".join(rng.choice(pool) + rng.choice(ends) for _ in range(words))


ODD = {
    "emoji": "one 👩‍👩‍👧 two 🇫🇷 three 😀😀😀 " * 40,
    "right_to_left": "שלום עולם مرحبا بالعالم \u202eabc\u202c " * 40,
    "nul": "a\x00b \x00 c\x00\x00 word \x00" * 60,
    "blanks": "word" + " " * 3000 + "word" + "\n" * 500 + "end word " * 20,
    "combining": "e\u0301 a\u0308 Å \u1100\u1161 ﬁ ½ " * 50,
    "no_blank": "x" * 4000,
    "a_run_then_words": "a" * 301 + " b" * 200,
    "digits": "1234567890" * 100 + " 12 345 6789 " * 30,
    "control": "word <|im_end|> word <|im_start|>user\n hi <|endoftext|> " * 30,
    "empty": "",
    "only_blanks": " \n\t " * 200,
    "wide_blanks": "a\u00a0b\u2003c\u3000d e\u2028f g " * 60,
}


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_long_equals_whole_for_odd_texts(tokenizer: Tokenizer, text: str) -> None:
    assert np.array_equal(tokenizer.encode_long(text).ids, tokenizer.encode(text))


@pytest.mark.usefixtures("short_segments")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(kind=st.sampled_from(list(MAKERS)), parts=st.lists(st.text(max_size=60) | st.sampled_from(TRAINING), max_size=8))
def test_long_equals_whole_for_any_text(kind: str, parts: list[str]) -> None:
    text = " ".join(parts)
    long = make(kind).encode_long(text)
    assert long.ids.dtype == np.uint32
    assert np.array_equal(long.ids, make(kind).encode(text))


def test_long_prose_is_cut_into_segments_and_equals_whole(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> None:
    text = prose(40_000)
    long = tokenizer.encode_long(text)
    assert np.array_equal(long.ids, tokenizer.encode(text))
    whole = request.node.callspec.params["tokenizer"] == "prepended"
    assert len(long.char_starts) == (1 if whole else pytest.approx(len(text) / tokens.SEGMENT_CHARS, abs=1.5))


def test_a_megabyte_without_a_blank_stays_whole_and_what_follows_is_cut() -> None:
    tokenizer = make("byte_level")
    text = "ab" * 500_000 + " and then " + prose(30_000)
    long = tokenizer.encode_long(text)
    assert np.array_equal(long.ids, tokenizer.encode(text))
    assert long.char_starts[1] >= 1_000_000
    assert len(long.char_starts) > 2


def test_a_tokenizer_that_refuses_every_cut_is_asked_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, text = make("prepended"), prose(40_000)
    asked = []
    monkeypatch.setattr(Tokenizer, "_neutral", lambda self, text, cut: asked.append(cut))
    assert tokenizer._cuts(text) == [0]
    assert len(asked) <= tokens._TRIES * (len(text) // tokens.SEGMENT_CHARS + 1)


def test_a_cut_needs_a_blank_within_the_probe_on_both_sides() -> None:
    # With the merge "a " a run's parity decides whether its last letter joins the blank; a probe of even length cannot see it.
    tokenizer = make("byte_level")
    run = "a" * 2 * tokens.PROBE_CHARS
    assert not tokenizer._neutral(run + " b", len(run))
    assert not tokenizer._neutral("one two" + " " * 2 * tokens.PROBE_CHARS + "b", 7)
    assert tokenizer._neutral("one two three", 7)


@pytest.mark.usefixtures("short_segments")
def test_spans_hold_the_stretch_they_were_asked_for() -> None:
    text = prose(400)
    for kind in ("byte_level", "byte_level_split"):
        long = make(kind).encode_long(text)
        for start in range(0, len(text) - 30, 37):
            first, last = long.span(start, start + 25)
            held = make(kind).decode(long.ids[first:last])
            assert text[start : start + 25] in held
            assert text[start : start + 25] not in make(kind).decode(long.ids[first + 1 : last])
            assert text[start : start + 25] not in make(kind).decode(long.ids[first : last - 1])


@pytest.mark.usefixtures("short_segments")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.text(min_size=1, max_size=200), st.data())
def test_span_is_tight_for_any_text(text: str, data: st.DataObject) -> None:
    tokenizer = make("byte_level")
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    long = tokenizer.encode_long(text)
    first, last = long.span(start, end)
    assert 0 <= first < last <= len(long.ids)
    assert text[start:end] in tokenizer.decode(long.ids[first:last])


def test_span_over_a_character_cut_in_several_tokens_takes_them_all() -> None:
    tokenizer = make("byte_level")
    long = tokenizer.encode_long("ab𝔘cd")
    first, last = long.span(2, 3)
    assert tokenizer.decode(long.ids[first:last]) == "𝔘"
    assert last - first == 4
    assert long.char(first) == 2


def test_span_over_a_whole_text_is_all_of_it(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox jumps."
    long = tokenizer.encode_long(text)
    assert long.span(0, len(text)) == (0, len(long.ids))


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 2), (-1, 2), (0, 99)])
def test_span_refuses_what_is_no_stretch_of_the_text(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="do not lie in a text of 9"):
        make("byte_level").encode_long("some text").span(start, end)


@pytest.mark.usefixtures("short_segments")
def test_char_and_span_are_inverse_at_token_starts() -> None:
    tokenizer, text = make("byte_level"), TRAINING[0] * 20
    long = tokenizer.encode_long(text)
    for token in range(len(long.ids)):
        at = long.char(token)
        assert long.span(at, at + 1)[0] == token
    with pytest.raises(ValueError, match=f"token {len(long.ids)} does not lie"):
        long.char(len(long.ids))


@pytest.mark.usefixtures("short_segments")
def test_decode_gives_the_text_back() -> None:
    tokenizer = make("byte_level")
    for text in ODD.values():
        assert tokenizer.decode(tokenizer.encode_long(text).ids) == text
    half = tokenizer.encode("𝔘")[:1]
    assert tokenizer.decode(half) == "\ufffd"
    assert tokenizer.decode([]) == ""


def test_control_tokens_are_inert_in_data_and_live_in_templates(tokenizer: Tokenizer) -> None:
    end = tokenizer.hf.convert_tokens_to_ids("<|im_end|>")
    text = "yes <|im_end|> no"
    assert end not in tokenizer.encode(text)
    assert end not in tokenizer.encode_long(text * 3000).ids
    assert list(tokenizer.encode_template(text)).count(end) == 1


def test_half_a_surrogate_pair_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_long):
        with pytest.raises(DataError, match=r"character 2 of the text is half a surrogate pair \('\\ud83d'\)"):
            encode("ab\ud83d")


@given(st.integers(0, 5000), st.integers(1, 700))
def test_windows_are_equal_contiguous_and_lossless(count: int, size: int) -> None:
    cut = windows(count, size)
    assert [a for a, _ in cut] == list(range(0, count, size))
    assert all(b - a == size for a, b in cut[:-1])
    assert sum(b - a for a, b in cut) == count
    assert not cut or (0 < cut[-1][1] - cut[-1][0] <= size and cut[-1][1] == count)


def test_windows_of_no_size_are_refused() -> None:
    for size in (0, -3):
        with pytest.raises(ConfigError, match=f"a window of {size} tokens is not possible"):
            windows(10, size)


def test_digest_is_of_the_ids_whatever_their_layout() -> None:
    ids = np.arange(10, dtype=np.uint32)
    assert digest(ids) == digest(ids.astype(np.int64)) == digest(np.arange(20, dtype=np.uint32)[::2] // 2)
    assert digest(ids) != digest(ids[::-1])
    assert digest(ids[:0]) == "e3b0c44298fc1c14"
    assert len(digest(ids)) == 16


def test_hash_does_not_depend_on_what_was_encoded_before(tiny_tokenizer: Path, tmp_path: Path) -> None:
    folder = _copy(tiny_tokenizer, tmp_path / "cut")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    used = Tokenizer.load(folder)
    assert len(used.encode_template("one two three four five six")) > 4
    assert used.hash == Tokenizer.load(folder).hash == Tokenizer.load(tiny_tokenizer).hash


def test_hash_names_vocabulary_and_chat_template(tiny_tokenizer: Path) -> None:
    one, two = Tokenizer.load(tiny_tokenizer), Tokenizer.load(tiny_tokenizer)
    assert one.hash == two.hash
    two.hf.chat_template += " "
    assert Tokenizer(two.hf).hash != one.hash
    assert len({make(kind).hash for kind in MAKERS}) == len(MAKERS)


def _copy(folder: Path, to: Path, without: str = "") -> Path:
    to.mkdir()
    for path in folder.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != without:
            (to / path.name).write_bytes(path.read_bytes())
    return to


def test_stop_ids_come_from_tokenizer_and_generation_config(tiny_tokenizer: Path, tmp_path: Path) -> None:
    assert Tokenizer.load(tiny_tokenizer).stop_ids == (2,)
    folder = _copy(tiny_tokenizer, tmp_path / "model")
    path = folder / "generation_config.json"
    for said, ids in [
        ({"eos_token_id": 0}, (0, 2)),
        ({"eos_token_id": None}, (2,)),
        ({}, (2,)),
        ({"eos_token_id": [5, 2]}, (2, 5)),
    ]:
        path.write_text(json.dumps(said))
        assert Tokenizer.load(folder).stop_ids == ids
    path.unlink()
    assert Tokenizer.load(folder).stop_ids == (2,)
    for damaged in ("{", "[]"):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"generation_config\.json: not a generation configuration"):
            _ = Tokenizer.load(folder).stop_ids


def test_a_response_shows_no_control_tokens_and_no_begun_character(tiny_tokenizer: Path) -> None:
    it = Tokenizer.load(tiny_tokenizer)
    ids = it.encode("Brest 🦊").tolist()
    whole = [*it.encode_template("<|im_start|>").tolist(), *ids, *it.stop_ids]
    assert it.response(whole) == "Brest 🦊"
    begun = next(n for n in range(len(ids), 0, -1) if it.decode(ids[:n]).endswith("\ufffd"))
    assert it.response(ids[:begun]) == "Brest "


def test_a_folder_without_a_tokenizer_is_named(tiny_tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such model folder"):
        Tokenizer.load(tmp_path / "nowhere")
    folder = _copy(tiny_tokenizer, tmp_path / "model", without="tokenizer.json")
    with pytest.raises(DataError, match=r"(?s)no tokenizer could be loaded from this folder.*It needs tokenizer\.json"):
        Tokenizer.load(folder)


def test_a_chat_is_rendered_ready_for_the_answer() -> None:
    tokenizer = make("byte_level")
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert tokenizer.chat(messages) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_template_that_is_missing_or_refuses_is_named(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer)
    tokenizer.hf.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(DataError, match=r"cannot render a system message with the arguments \{'a': 1\}.*no system role"):
        tokenizer.chat([{"role": "system", "content": "x"}], a=1)
    with pytest.raises(DataError, match=r"cannot render a user message.*tokenize"):
        tokenizer.chat([{"role": "user", "content": "x"}], tokenize=True)
    tokenizer.hf.chat_template = None
    with pytest.raises(DataError, match="no chat template"):
        tokenizer.chat([{"role": "user", "content": "x"}])
