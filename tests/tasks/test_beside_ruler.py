"""Our RULER tasks beside RULER's own generators and scorers, which nobody here wrote: same structure, sizes and scores.

Runs where ruler, essays, squad and hotpotqa have been fetched. The generators are programs: each is run as one, with a
stand-in for the sentence splitter it would fetch data for, and with fewer words, of which it would sort seven million pairs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import json
import random
import re
import runpy
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import wonderwords
import yaml

from pimem import data, models, scoring
from pimem.config import ModelSpec, TaskSpec
from pimem.records import Sample
from pimem.tasks import base, haystacks, niah
from pimem.tasks.base import RULER
from pimem.tokens import Tokenizer

pytestmark = pytest.mark.data

LENGTH = 8192
SAMPLES = 2
ONE_OF_A_KIND = ("niah_multikey_1", "vt", "cwe", "fwe", "qa_1")
"""A task of each of their programs; the others, made by the same ones, are for a longer run."""
OPEN, CLOSE = "<<<", ">>>"
SPLITTER = "import re\ndef sent_tokenize(text):\n    return re.split(r'(?<=[.!?])\\s+', text)\n"
STEP = {
    "essay": 500 * 5,
    "repeat": 25 * 32,
    "needle": 25 * 80,
    "vt": 10 * 32,
    "cwe": 10 * 3 * 9 + 120,
    "fwe": 128 * 5,
    "qa": 10 * 400,
}
"""Tokens, at the most, of the step in which theirs grow: so far below the length may their totals lie."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked package, and beside it the stand-in; skips where something has not been fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PIMEM_HOME")
        needed = [data.home() / "data" / name for name in ("ruler", "essays", "squad", "hotpotqa")]
        if missing := [path.name for path in needed if not path.exists()]:
            pytest.skip(f"needs: pimem data fetch {missing[0]}")
        if not (models.home() / "models" / "smollm2-135m").exists():
            pytest.skip("needs: pimem models fetch smollm2-135m")
        folder = tmp_path_factory.mktemp("ruler")
        with zipfile.ZipFile(data.path("ruler") / "ruler.whl") as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("long_context_eval/")])
    (folder / "nltk" / "tokenize").mkdir(parents=True)
    (folder / "nltk" / "__init__.py").touch()
    (folder / "nltk" / "tokenize" / "__init__.py").write_text(SPLITTER)
    return folder


@pytest.fixture(scope="module")
def real(theirs: Path) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PIMEM_HOME")
        return Tokenizer.load(models.resolve(ModelSpec("smollm2-135m")))


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fetched data, read once, with a place of its own for what is built."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PIMEM_HOME")
        (folder / "data").symlink_to(data.home() / "data")
    return folder


@pytest.fixture
def own_built(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(shared_home))


def read(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(theirs: Path, name: str, out: Path, model: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What RULER's own program makes of one of its thirteen tasks, and the task's arguments and prompts there."""
    package = theirs / "long_context_eval"
    setup = yaml.safe_load((package / "synthetic.yaml").read_text())[name]
    prompts = read(package / "data/synthetic/constants.py", "ruler_prompts").TASKS[setup["task"]]
    own = f"{OPEN}{{context}}{CLOSE}"
    template = prompts["template"].replace("{context}", own) + prompts["answer_prefix"] if name == "vt" else own
    options = {"save_dir": out, "save_name": name, "tokenizer_path": model, "tokenizer_type": "hf", "max_seq_length": LENGTH}
    options |= {
        "tokens_to_generate": prompts["tokens_to_generate"],
        "num_samples": SAMPLES,
        "template": template,
        **setup["args"],
    }
    program = package / "data/synthetic" / f"{setup['task']}.py"
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wonderwords.random_word, "_get_words_from_text_file", few_words)
        patch.setattr(
            sys, "argv", [str(program), *(str(part) for key, value in options.items() for part in (f"--{key}", value))]
        )
        patch.setattr(sys, "path", [str(theirs), str(program.parent), str(package / "data"), *sys.path])
        runpy.run_path(str(program), run_name="__main__")
    for imported in set(sys.modules) - before:
        if str(theirs) in str(getattr(sys.modules[imported], "__file__", "")):
            del sys.modules[imported]
    rows = [json.loads(line) for line in (out / name / "validation.jsonl").read_text().splitlines()]
    return rows, setup["args"] | prompts


WORDS = wonderwords.random_word._get_words_from_text_file


def few_words(name: str) -> list[str]:
    return WORDS(name)[:700]


def context(row: dict[str, Any]) -> str:
    """What stands between the marks, the last time: a worked example comes before."""
    return row["input"].rpartition(OPEN)[2].partition(CLOSE)[0].strip()


def ours(name: str, length: int, tokenizer: Tokenizer) -> Sample:
    params = {"unit": "tokens"} if RULER[name] == "hotpotqa" else {}
    (sample,) = base.build(TaskSpec(RULER[name], length, params=params), tokenizer).samples(1)
    return sample


def shape(name: str, text: str, answers: list[str]) -> dict[str, Any]:
    """What can be said of a context of either make without knowing its wording."""
    if name.startswith("niah"):
        at = [text.index(answer) / len(text) for answer in answers]
        return {
            "answers": len(answers),
            "form": {form(answer) for answer in answers},
            "once": all(map(text.count, answers)),
            "spread": len(set(at)),
        }
    if name == "vt":
        lines = [line for line in re.split(r"\n|(?<=\.) ", text) if any(answer in line for answer in answers)]
        firsts = [min(text.index(answer), len(text)) for answer in answers]
        return {
            "answers": len(answers),
            "form": {form(a) for a in answers},
            "in order": firsts == sorted(firsts),
            "lines": len(lines),
        }
    if name == "cwe":
        entries = re.findall(r"(\d+)\. (\S+)", text)
        counts = Counter(word for _, word in entries)
        numbered = [int(n) for n, _ in entries] == list(range(1, len(entries) + 1))
        common = sorted(counts[answer] for answer in answers)
        return {"numbered": numbered, "common": common, "others": {n for word, n in counts.items() if word not in answers}}
    if name == "fwe":
        counts = Counter(re.split(r"\s+", text))
        total = sum(counts.values())
        shares = [round(n / total, 2) for _, n in counts.most_common(5)]
        ranked = [word for word, _ in counts.most_common(4)]
        return {
            "shares": shares,
            "first": ranked[0],
            "asked": set(ranked[1:]) == set(answers),
            "form": {form(a) for a in answers},
        }
    documents = re.split(r"\n\n(?=Document \d+:\n)", text)
    return {
        "numbered": [int(re.findall(r"\d+", d)[0]) for d in documents] == list(range(1, len(documents) + 1)),
        "known": {body(d) in known(name) for d in documents},
        "twice": len(documents) - len(set(map(body, documents))),
    }


@functools.cache
def known(name: str) -> set[str]:
    """The paragraphs that a question task is made of."""
    if name == "qa_1":
        return {p.text.strip() for p in data.corpus("squad").paragraphs}
    return {f"{p.title}\n{p.text}".strip() for p in data.corpus("hotpotqa").paragraphs}


def body(document: str) -> str:
    return document.split("\n", 1)[1].strip()


def form(answer: str) -> str:
    """Digits, letters and hexadecimal groups by their kind and number."""
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", answer):
        return "uuid"
    return re.sub(r"[A-Z]", "A", re.sub(r"[a-z]", "a", re.sub(r"\d", "0", answer)))


@pytest.mark.usefixtures("own_built")
@pytest.mark.parametrize("name", [n if n in ONE_OF_A_KIND else pytest.param(n, marks=pytest.mark.slow) for n in RULER])
def test_same_structure_answers_and_size(name: str, theirs: Path, real: Tokenizer, tmp_path: Path) -> None:
    rows, setup = generate(theirs, name, tmp_path / "out", real._folder)
    assert len(rows) == SAMPLES
    kind = setup.get("type_haystack") or (name if name in STEP else "qa")
    for row in rows:
        assert LENGTH - STEP[kind] <= row["length"] <= LENGTH + (setup["tokens_to_generate"] if name == "fwe" else 0)
        text = context(row)
        tokens = len(real.encode(text))
        mine = ours(name, tokens, real)
        assert len(mine.context_ids) <= tokens < mine.meta["one_more"]
        assert mine.meta["one_more"] - tokens <= STEP[kind]
        left, right = shape(name, text, row["outputs"]), shape(name, real.decode(mine.context_ids), list(mine.answers))
        assert left == right


MANGLES = (
    lambda a: a,
    lambda a: a.upper(),
    lambda a: a[:-1],
    lambda a: f"The answer is: {a}.",
    lambda a: a.replace(" ", ""),
    lambda a: f"\t{a}\n\x00",
    lambda a: "\n".join(a),
    lambda a: f"not {a[::-1]}",
    lambda a: "",
    lambda a: a.replace("é", "e"),
)


def test_both_scorers_agree_on_real_and_mangled_answers(theirs: Path) -> None:
    scorers = read(theirs / "long_context_eval/eval/synthetic/constants.py", "ruler_scorers").TASKS
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PIMEM_HOME")
        squad = [q.answers for q in data.corpus("squad").questions if q.answers][:60]
    lists = [tuple(itertools.islice(haystacks.names(kind, "k"), 4)) for kind in ("number", "uuid", "word")] * 20
    rng, scores = random.Random(5), set()
    for family, own, golds in (("qa", scoring.contains, squad), ("niah", scoring.multi_recall, lists)):
        for answers, mangle in itertools.product(golds, MANGLES):
            said = ", ".join(mangle(answer) for answer in rng.sample(answers, rng.randint(1, len(answers))))
            # As their evaluation prepares a prediction.
            prediction = re.sub(r"[\x00-\x1f]", "\n", said.strip()).strip()
            (right,) = scorers[family]["metric_fn_per_sample"]([prediction], [list(answers)])
            assert 100 * own(said, answers) == pytest.approx(right), (said, answers)
            scores.add(right)
    assert scores >= {0.0, 25.0, 50.0, 75.0, 100.0}


def test_every_task_is_scored_as_there(theirs: Path) -> None:
    package = theirs / "long_context_eval"
    scorers = read(package / "eval/synthetic/constants.py", "ruler_scorers").TASKS
    setups = yaml.safe_load((package / "synthetic.yaml").read_text())
    assert set(setups) == set(RULER)
    metrics = {"string_match_all": "multi_recall", "string_match_part": "sub_em"}
    for name, setup in setups.items():
        module = importlib.import_module(f"pimem.tasks.{base.TASKS[RULER[name]].module}")
        owner = next(
            v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__ and hasattr(v, "metric")
        )
        assert owner.metric == metrics[scorers[setup["task"]]["metric_fn"].__name__]
        if name.startswith("niah"):
            variant, args = niah.VARIANTS[name], setup["args"]
            kinds = {
                "repeat": "noise",
                "essay": "essays",
                "needle": "needles",
                "words": "word",
                "numbers": "number",
                "uuids": "uuid",
            }
            assert variant == niah.Variant(
                kinds[args["type_haystack"]],
                kinds[args["type_needle_k"]],
                kinds[args["type_needle_v"]],
                max(args["num_needle_k"], args["num_needle_q"]),
                args["num_needle_v"],
                args["num_needle_q"],
            )
