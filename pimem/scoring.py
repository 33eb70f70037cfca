"""Answer extraction and metrics, computed from stored traces and never while generating.

Scores lie in 0..1. Every function takes any text without raising and in time linear in its length. Where the released
evaluation behaves differently from the obvious reading of the paper, the docstring says how.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from pimem.errors import ConfigError, DataError, nearest
from pimem.records import Trace

AnswerForm = Literal["boxed", "phrase", "plain", "choice"]
"""How a prompt set asks for the answer: in \\boxed{}, after the words "the answer is", as the bare response, or as a letter in
LongBench v2's sentence."""

WITHOUT_MEMORY = frozenset({"vanilla", "yarn", "rag"})
"""Methods for which memory coverage does not exist."""

_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")
_PHRASE = re.compile(r"the\s+answer\s+is\b", re.IGNORECASE)
_SENTENCES = (re.compile(r"The correct answer is \(([A-D])\)"), re.compile(r"The correct answer is ([A-D])"))
_CHOICE = re.compile(r"\W*([A-Da-d])(?:\W*|[).:]\W.*)", re.DOTALL)
_LETTER = re.compile(r"\b[A-D]\b")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})


def extract(text: str, form: AnswerForm) -> str | None:
    """The answer a response gives, stripped; None where it gives none.

    boxed: the content of the last `\\boxed{...}` whose braces close, so a box cut off at the token limit never hides an
    earlier complete one; LaTeX inside stays as it is. phrase: what follows the last "the answer is", without asterisks,
    leading colon and trailing period. plain: the first line that is not blank. choice: the letter as LongBench v2 extracts it
    (`official_choice`). Raises `ConfigError` for another form.
    """
    if form not in _EXTRACTORS:
        raise ConfigError(f"unknown answer form {form!r}; {nearest(str(form), _EXTRACTORS)}")
    answer = _EXTRACTORS[form](text)
    return answer.strip() if answer and answer.strip() else None


def _boxed(text: str) -> str | None:
    best: tuple[int, int] | None = None
    open_braces: list[tuple[int, bool]] = []
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "}":
            start, is_box = open_braces.pop() if open_braces else (0, False)
            if is_box and (best is None or start > best[0]):
                best = start, match.start()
        elif not token.startswith("\\") or len(token) > 2:
            open_braces.append((match.end(), len(token) > 1))
    return text[best[0] : best[1]] if best else None


def _phrase(text: str) -> str | None:
    ends = [match.end() for match in _PHRASE.finditer(text)]
    if not ends:
        return None
    return text[ends[-1] :].replace("*", "").strip().removeprefix(":").strip().removesuffix(".")


def _plain(text: str) -> str | None:
    return text.strip().partition("\n")[0]


def official_choice(text: str) -> str | None:
    """The letter as LongBench v2's own evaluation extracts it; None, which is wrong, for every other wording.

    Asterisks are taken out; the first "The correct answer is (X)" counts, without one the first "The correct answer is X".
    Case matters, and nothing may stand between "is" and the letter.
    """
    text = text.replace("*", "")
    for sentence in _SENTENCES:
        if found := sentence.search(text):
            return found[1]
    return None


_EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": _boxed,
    "phrase": _phrase,
    "plain": _plain,
    "choice": official_choice,
}
assert set(_EXTRACTORS) == set(get_args(AnswerForm))


def normalise(text: str) -> str:
    """Lower case, ASCII punctuation and English articles removed, white space squeezed (the SQuAD normalisation)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def sub_em(prediction: str | None, golds: Sequence[str]) -> float:
    """1 where, normalised, a gold stands in the prediction or the prediction in a gold; the paper's Sub-EM as released.

    A prediction that normalises to nothing scores 0. The released scorer gives it 1, because the empty string stands in
    every gold, and looks at the first gold only.
    """
    return _any(prediction, golds, lambda p, g: bool(p) and (g in p or p in g))


def sub_em_strict(prediction: str | None, golds: Sequence[str]) -> float:
    """1 where, normalised, a gold stands in the prediction: a fragment of the answer does not count."""
    return _any(prediction, golds, lambda p, g: g in p)


def exact_match(prediction: str | None, golds: Sequence[str]) -> float:
    """1 where the prediction equals a gold, both normalised."""
    return _any(prediction, golds, lambda p, g: p == g)


def _any(prediction: str | None, golds: Sequence[str], matches: Callable[[str, str], bool]) -> float:
    if prediction is None:
        return 0.0
    said = normalise(prediction)
    return float(any(matches(said, normalise(g)) if normalise(g) else _same(prediction, g) for g in golds))


def _same(prediction: str, gold: str) -> bool:
    """For golds that are nothing but articles and punctuation ("The The"): equal up to case and white space."""
    return prediction.lower().split() == gold.lower().split()


def f1(prediction: str | None, golds: Sequence[str]) -> float:
    """Best harmonic mean of word precision and recall over the golds; yes and no count only when met exactly (HotpotQA)."""
    return max((_f1(prediction, gold) for gold in golds), default=0.0) if prediction is not None else 0.0


def _f1(prediction: str, gold: str) -> float:
    said, wanted = normalise(prediction), normalise(gold)
    if not wanted:
        return float(_same(prediction, gold))
    if said != wanted and (said in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, gold_words = said.split(), wanted.split()
    shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * shared / (len(words) + len(gold_words)) if shared else 0.0


def multi_recall(prediction: str | None, golds: Sequence[str]) -> float:
    """Share of golds that stand in the prediction, whatever the case (RULER's metric for tasks with several answers)."""
    return _share(prediction or "", golds)


def contains(prediction: str | None, golds: Sequence[str]) -> float:
    """1 where a gold stands in the prediction, whatever the case and nothing else normalised (RULER's metric for questions)."""
    return float(_share(prediction or "", golds) > 0)


def coverage(memory: str, golds: Sequence[str]) -> float:
    """Share of golds that stand in the final memory, whatever the case (the paper's Table 4)."""
    return _share(memory, golds)


def _share(text: str, golds: Sequence[str]) -> float:
    text = text.lower()
    return sum(gold.lower() in text for gold in golds) / len(golds) if golds else 0.0


def holds_any(memory: str, golds: Sequence[str]) -> float:
    """1 where a gold stands in the final memory as whole words, normalised: coverage for alternative answers."""
    words = f" {normalise(memory)} "
    return float(any(f" {normalise(gold)} " in words for gold in golds if normalise(gold)))


def _score_one_of(response: str, answers: Sequence[str], form: AnswerForm) -> dict[str, float]:
    answer = extract(response, form)
    return {
        "sub_em": sub_em(answer, answers),
        "sub_em_strict": sub_em_strict(answer, answers),
        "em": exact_match(answer, answers),
        "f1": f1(answer, answers),
        "contains": contains(answer, answers),
        "extracted": float(answer is not None),
    }


def _score_all_of(response: str, answers: Sequence[str], form: AnswerForm) -> dict[str, float]:
    answer = response.strip() or None if form == "plain" else extract(response, form)
    return {"multi_recall": multi_recall(answer, answers), "extracted": float(answer is not None)}


def choice(response: str, form: AnswerForm) -> str | None:
    """The letter that a response chooses in the form it was asked for; None where it chooses none.

    In another form than `choice` the extracted answer must be a letter, bracketed or not, or begin with one that a bracket,
    period or colon sets off: "B", "(b)", "B. Brest".
    """
    answer = extract(response, form)
    found = _CHOICE.fullmatch(answer) if answer else None
    return found[1].upper() if found else None


def released_choice(response: str, form: AnswerForm) -> str | None:
    """The letter as the authors' released code reads it: the official sentence, else the boxed or extracted answer, else the
    response itself, of which the first letter from A to D that stands alone counts; an article "A" is such a letter.
    """
    if letter := official_choice(response):
        return letter
    answer = _boxed(response) or (extract(response, form) if form != "choice" else None) or response
    bare = answer.strip(string.punctuation + string.whitespace)
    if len(bare) == 1 and bare.upper() in "ABCD":
        return bare.upper()
    found = _LETTER.search(answer)
    return found[0] if found else None


def _score_choice(response: str, answers: Sequence[str], form: AnswerForm) -> dict[str, float]:
    letter = choice(response, form)
    return {
        "accuracy": float(letter in answers),
        "accuracy_released": float(released_choice(response, form) in answers),
        "extracted": float(letter is not None),
    }


METRICS: dict[str, Callable[[str, Sequence[str], AnswerForm], dict[str, float]]] = {
    "sub_em": _score_one_of,
    "multi_recall": _score_all_of,
    "accuracy": _score_choice,
}
"""Primary metric of a task -> what is computed with it. sub_em: answers are alternatives; multi_recall: all are asked for;
accuracy: the answer is the letter of a choice."""


def score(trace: Trace, answers: Sequence[str], form: AnswerForm, metric: str) -> dict[str, float]:
    """Every score of one trace, by metric name, in 0..1.

    `sub_em` also gives `sub_em_strict`, `em`, `f1` and `contains`, `accuracy` also `accuracy_released`; every metric gives
    `extracted` (1 where the response holds an answer in the form asked for) and, for methods with a memory, `coverage`:
    `holds_any` under `sub_em`, the share of answers in the final memory under `multi_recall`; none under `accuracy`, where a
    letter in a memory means nothing. A bare response to a question with several answers is taken whole, since lists run over
    lines. A failed trace scores 0 throughout and so stays in the denominator; the released evaluation leaves it out.
    Raises `ConfigError` for an unknown form or metric and `DataError` for answers that are missing or blank.
    """
    if metric not in METRICS:
        raise ConfigError(f"unknown metric {metric!r}; {nearest(metric, METRICS)}")
    if isinstance(answers, str) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise DataError(f"sample {trace.sample}: gold answers must be a list of texts that are not blank, got {answers!r}")
    scores = METRICS[metric](trace.response, answers, form)
    if trace.method not in WITHOUT_MEMORY and metric != "accuracy":
        scores["coverage"] = (coverage if metric == "multi_recall" else holds_any)(trace.memory, answers)
    if trace.status == "failed":
        return dict.fromkeys(scores, 0.0)
    return scores
