"""Contexts with known facts, as arrays of token ids: what the examples of the cold start are cut from.

They are put together from paragraphs, sentences and lines tokenised once, as inference shows them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pimem.corpora import Corpus, Question
from pimem.tasks import haystacks, hotpotqa, niah, splits
from pimem.tokens import Tokenizer
from pimem.training import planted
from pimem.training.documents import Documents, Part, Scene, tokens_of
from pimem.training.squad import Articles
from pimem.training.teacher import Placed


class Source(Documents):
    """Draws scenes from one part of the data: HotpotQA's documents, `articles` of SQuAD, and facts planted in other text."""

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, squad: Corpus, part: Part, seed: int, sentences: int = 40_000):
        """Raises `DataError` where a set cannot be tokenised or has no fitting question."""
        super().__init__(tokenizer, corpus, hotpotqa.split(corpus, part), np.random.default_rng(seed))
        self.part = part
        self.sentences = self._sentences(sentences)
        self.articles = Articles(tokenizer, squad, part, np.random.default_rng([seed, 1]))
        if part == "train":
            self.beside, self.articles.beside = self.articles, self

    def _sentences(self, n: int) -> list[np.ndarray]:
        """Runs of sentences of drawn paragraphs, tokenised with the blank before each."""
        texts: list[str] = []
        for i in self.rng.permutation(len(self.paragraphs)):
            texts += [" " + s.strip() for s in self.corpus.paragraphs[self.paragraphs[i]].sentences if s.strip()]
            if len(texts) >= n:
                break
        return self.tokenizer.encode_many(texts)

    def hotpotqa(self, question: Question, documents: int, gold: Sequence[int] = (), own: bool = True) -> Scene | None:
        """A stretch of numbered documents: paragraphs `gold` of the question's own gold ones, its distractors if `own`, others.

        None where a gold paragraph does not tokenise alone as it does in place.
        """
        every = splits.gold(question)
        others = [p for p in question.paragraphs if p not in every and p in self._usable] if own else []
        chosen = [*gold, *others][:documents]
        fill = self.fill(documents - len(chosen), question.paragraphs)
        return self.assemble(question, [*((self, p) for p in chosen), *fill], gold, others)

    # Needles and planted facts

    def needles(self, hay: str, tokens: int, variant: niah.Variant, own_words: bool, without: bool = False) -> Scene:
        """Needles among about `tokens` tokens of haystack `hay`; `without` leaves those asked for out."""
        key = f"{self.part} {self.rng.integers(1 << 62)}"
        keys = _first(haystacks.names(variant.keys, f"key {key}"), variant.keys_hidden + 24)
        values = _first(haystacks.names(variant.values, f"value {key}"), variant.keys_hidden * variant.values_per_key + 24)
        noun = "number" if variant.values == "number" else "code"
        hidden = [(keys[i // variant.values_per_key], v) for i, v in enumerate(values[:-24])]
        asked = keys[: variant.keys_asked]
        several = len(asked) > 1 or variant.values_per_key > 1
        say: Callable[[str, str], str]
        if own_words:
            say = functools.partial(niah.sentence, kind=variant.values)
            question = niah.ask(asked, variant.values, several)
        else:
            style = int(self.rng.integers(len(_STYLES)))
            say = lambda k, v: _STYLES[style][0].format(noun=noun, key=k, value=v)  # noqa: E731
            listed = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
            question = _STYLES[style][2 if several else 1].format(noun=noun, key=listed)
        subjects = {say(k, v): k for k, v in hidden}
        facts = [planted.Fact(say(k, v), question, v, 0) for k, v in hidden if k in asked]
        decoys = [say(k, v) for k, v in hidden if k not in asked]
        decoys += [say(k, v) for k, v in zip(keys[-24:], values[-24:], strict=True)][: int(self.rng.integers(0, 4))]
        filler = [say(k, v) for k, v in zip(keys[-24:], values[-24:], strict=True)] if hay == "needles" else None
        scene = self._plant(hay, tokens, facts, [] if without else facts, decoys, filler)
        scene.kind, scene.open = "needles", variant.values_per_key > 1
        name = lambda facts: [replace(f, subject=subjects[f.text]) for f in facts]  # noqa: E731
        scene.gold, scene.elsewhere = name(scene.gold), name(scene.elsewhere)
        return scene

    def made_up(self, hay: str, tokens: int, without: bool = False) -> Scene:
        """One made-up fact in prose, and often others that look alike."""
        fact = planted.draw(self.rng, self.part)
        decoys = []
        for _ in range(int(self.rng.integers(0, 5))):
            other = planted.draw(self.rng, self.part, fact.pattern if self.rng.random() < 0.4 else None)
            if other.question != fact.question and other.sentence != fact.sentence:
                decoys.append(other.sentence)
        scene = self._plant(hay, tokens, [fact], [] if without else [fact], decoys)
        scene.kind = "planted"
        return scene

    def chain(self, hay: str, tokens: int, without: bool = False) -> Scene:
        """Two made-up facts that only together answer the question, either or both of them here, and look-alikes."""
        # That module draws on this one.
        from pimem.training import two_hop

        pattern = int(self.rng.integers(len(two_hop.PATTERNS)))
        made = two_hop.draw(self.rng, self.part, pattern)
        decoys: list[str] = []
        for _ in range(int(self.rng.integers(0, 6))):
            other = two_hop.draw(self.rng, self.part, pattern)
            if not other.names & made.names and other.answer != made.answer:
                decoys.append(other.first if self.rng.random() < 0.5 else other.second)
        facts = [planted.Fact(text, made.question, made.answer, pattern) for text in (made.first, made.second)]
        here = [] if without else [facts, facts, facts[:1], facts[1:]][int(self.rng.integers(4))]
        scene = self._plant(hay, tokens, facts, here, decoys)
        bridge = next((n for n in sorted(made.names) if n in made.first and n in made.second), "")
        scene.kind, scene.answers = "chain", (made.answer,)
        led = lambda placed: [  # noqa: E731
            replace(f, clear=False, subject=bridge) if f.text == made.second else f for f in placed
        ]
        scene.gold, scene.elsewhere = led(scene.gold), led(scene.elsewhere)
        return scene

    def _plant(
        self,
        hay: str,
        tokens: int,
        facts: list[planted.Fact],
        here: list[planted.Fact],
        decoys: list[str],
        filler: list[str] | None = None,
    ) -> Scene:
        """A context with the facts `here` and the decoys; the others of `facts` are elsewhere."""
        units = self._hay(hay, tokens, filler)
        joiner = "\n" if hay in ("noise", "needles", "log") else " "
        listed: list[planted.Fact | str] = [*here, *decoys]
        inserted = [(int(self.rng.integers(len(units) + 1)), what) for what in listed]
        inserted.sort(key=lambda pair: pair[0])
        parts: list[np.ndarray] = []
        gold, near, at, done = [], [], 0, 0
        places: list[tuple[int, planted.Fact | str | None]] = [*inserted, (len(units), None)]
        for slot, what in places:
            parts += units[done:slot]
            at += sum(map(len, units[done:slot]))
            done = max(done, slot)
            if what is None:
                break
            text = joiner + (what if isinstance(what, str) else what.sentence)
            made = self.tokenizer._inert.encode(text, add_special_tokens=False)
            ids, offsets = np.asarray(made.ids, dtype=np.uint32), np.asarray(made.offsets)
            if isinstance(what, str):
                near.append((at, at + len(ids)))
            else:
                first, _ = tokens_of(offsets, 1, len(text))
                answer = None
                if (place := text.rfind(what.answer)) >= 0:
                    a, b = tokens_of(offsets, place, place + len(what.answer))
                    answer = (at + a, at + b)
                gold.append(Placed(what.sentence, at + first, at + len(ids), answer))
            parts.append(ids)
            at += len(ids)
        missing = [Placed(f.sentence, 0, 0) for f in facts if f not in here]
        answers = tuple(f.answer for f in facts)
        return Scene("", facts[0].question, answers, np.concatenate(parts), gold, missing, near, facts[0].question)

    def _hay(self, hay: str, tokens: int, filler: list[str] | None) -> list[np.ndarray]:
        if hay == "essays":
            return self._run(self._essays, int(self.rng.integers(len(self._essays))), tokens)
        if hay == "prose":
            return self._run(self.sentences, int(self.rng.integers(len(self.sentences))), tokens)
        if hay == "noise":
            line = self._line(haystacks.NOISE)
            return [line] * max(1, tokens // len(line))
        bank = self._log if filler is None else self.tokenizer.encode_many(["\n" + line for line in filler])
        lines, count = [], 0
        while count < tokens:
            lines.append(bank[int(self.rng.integers(len(bank)))])
            count += len(lines[-1])
        return lines

    def _run(self, bank: list[np.ndarray], at: int, tokens: int) -> list[np.ndarray]:
        out, count = [], 0
        while count < tokens:
            out.append(bank[at % len(bank)])
            count += len(out[-1])
            at += 1
        return out

    @functools.cached_property
    def _essays(self) -> list[np.ndarray]:
        units = haystacks.essays().units("cold start")
        return self.tokenizer.encode_many([" " + text for text in _first(units, 4000)])

    @functools.cached_property
    def _log(self) -> list[np.ndarray]:
        return self.tokenizer.encode_many(["\n" + planted.log_line(self.rng, self.part) for _ in range(4000)])

    def _line(self, text: str) -> np.ndarray:
        return self.tokenizer.encode("\n" + text)


_STYLES = (
    ("One of the special {noun}s for {key} is: {value}.", "What is the special {noun} for {key} given in the text?",
     "What are all the special {noun}s for {key} given in the text?"),
    ("The {noun} of {key} is {value}.", "What is the {noun} of {key}?", "What are the {noun}s of {key}?"),
    ("Remember {value}, it is a {noun} for {key}.", "Which {noun} for {key} should be remembered?",
     "Which {noun}s for {key} should be remembered?"),
    ("{key} has the {noun} {value}.", "Which {noun} does {key} have?", "Which {noun}s do {key} have?"),
)  # fmt: skip
"""Sentence, question for one value, question for several."""


def _first(stream: Iterator[str], n: int) -> list[str]:
    return [next(stream) for _ in range(n)]
