"""RAG: BM25 over windows of this one context, the best in front of the model while there is room."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pimem.config import RagSpec
from pimem.prompts import PromptSet
from pimem.workflows.rag import okapi

QUESTION = "where does the lighthouse keeper live"


def spec(**fields: Any) -> RagSpec:
    return RagSpec(**{"chunk_tokens": 64, "answer_tokens": 16, **fields})


def answer(key: Any, prompt: str) -> str:
    return "Brest"


def context(lab: Any, planted: int, windows: int = 12) -> Any:
    texts = ["the fox and a dog"] * windows
    texts[planted] = "A lighthouse keeper in Brest"
    return lab.chunks(*texts)


@pytest.mark.parametrize("planted", [0, 5, 11])
async def test_a_planted_passage_comes_first_and_ties_keep_the_order_of_the_text(lab: Any, planted: int) -> None:
    trace = await lab.run(spec(), answer, context(lab, planted), QUESTION)
    others = [i for i in range(12) if i != planted]
    assert trace.retrieved == [planted, *others[:5]]
    assert (trace.status, trace.response, trace.chunks, trace.notes) == ("answered", "Brest", 12, {})
    prompt = lab.seen[0, "answer", 0]
    assert prompt.startswith(f"retrieved Q={QUESTION} C=A lighthouse keeper in Brest")
    assert prompt.count("the fox and a dog") == 5
    assert prompt.count(" \n\nthe fox") == 5


async def test_passages_stop_where_the_window_is_full(lab: Any) -> None:
    own = lab.build(spec()).template("retrieved").tokens
    between = lab.size("\n\n")
    lab.window = own + lab.size(QUESTION) + 16 + 3 * 64 + 2 * between
    trace = await lab.run(spec(), answer, context(lab, 7), QUESTION)
    assert trace.retrieved == [7, 0, 1]
    assert trace.notes == {"retrieved_without_room": 3}
    assert trace.last.completion.prompt_tokens + 16 == lab.window
    lab.window -= 1
    trace = await lab.run(spec(), answer, context(lab, 7), QUESTION)
    assert (trace.retrieved, trace.notes) == ([7, 0], {"retrieved_without_room": 4})


async def test_fewer_windows_than_wanted_are_all_shown(lab: Any) -> None:
    trace = await lab.run(spec(), answer, lab.chunks("a fox", "a keeper"), QUESTION)
    assert trace.retrieved == [1, 0]
    assert (await lab.run(spec(top=1), answer, lab.chunks("a fox", "a keeper"), QUESTION)).retrieved == [1]


@pytest.mark.parametrize("texts", [("a fox", "a dog", "a cat"), (" ", " "), ("\n",)])
async def test_without_a_word_in_common_the_text_keeps_its_order(lab: Any, texts: tuple[str, ...]) -> None:
    trace = await lab.run(spec(), answer, lab.chunks(*texts), QUESTION)
    assert trace.retrieved == list(range(len(texts)))


async def test_a_window_without_words_does_no_harm(lab: Any) -> None:
    trace = await lab.run(spec(), answer, lab.chunks(" ", "a keeper", " "), QUESTION)
    assert trace.retrieved == [1, 0, 2]


async def test_words_are_compared_in_lower_case_with_their_punctuation(lab: Any) -> None:
    trace = await lab.run(spec(top=1), answer, lab.chunks("keeper, keeper.", "a fox", "KEEPER"), QUESTION)
    assert trace.retrieved == [2]


def test_scores_are_those_of_the_formula(lab: Any) -> None:
    # Three words a window, so length counts the same; k1 = 1.5.
    windows = ["keeper a b", "keeper keeper live", "c d e"]
    chunks = [lab.tokenizer.encode(text) for text in windows]
    assert lab.build(spec())._rank("live keeper", chunks) == [1, 0, 2]

    def idf(holding: int) -> float:
        return math.log(1 + (3 - holding + 0.5) / (holding + 0.5))

    import bm25s

    index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    index.index([w.split() for w in windows], show_progress=False)
    wanted = [idf(2) / 2.5, idf(2) * 2 / 3.5 + idf(1) / 2.5, 0.0]
    assert index.get_scores(["live", "keeper"]).tolist() == pytest.approx(wanted, rel=1e-6)


def test_ranking_leaves_a_gpu_to_the_model(tmp_path: Path) -> None:
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\nopen(os.environ['SEEN'], 'w').write(os.environ.get('JAX_PLATFORMS', ''))\n"
    )
    (package / "lax.py").write_text("def top_k(scores, k):\n    return scores, scores\n")
    code = (
        "import numpy as np\nfrom types import SimpleNamespace as N\nfrom pimem.workflows.rag import Rag\n"
        "rag = N(spec=N(bm25='lucene'), tokenizer=N(decode=lambda ids: ['a fox', 'the lamp'][ids[0]]))\n"
        "print(Rag._rank(rag, 'lamp', [np.array([0]), np.array([1])]))"
    )
    seen = tmp_path / "seen"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}", "SEEN": str(seen)}
    environment.pop("JAX_PLATFORMS", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 0]"
    assert seen.read_text() == "cpu"


async def test_passages_in_the_order_of_the_text_and_as_the_prompt_set_shows_them(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.yaml").write_text(
        'name: n\nversion: "1"\nanswer_form: plain\npassage: "<{label}>{text}"\n'
        'phases:\n  retrieved: "Q={question} C={context}"\n'
    )
    lab.prompts = PromptSet.load(tmp_path)
    context = lab.chunks("a fox", "the keeper", "a dog", "where does the keeper live")
    trace = await lab.run(spec(top=2, order="text"), answer, context, QUESTION)
    assert trace.retrieved == [3, 1]
    shown = lab.seen[0, "answer", 0]
    assert shown.index("<1>the keeper") < shown.index("<2>where does")
    own = lab.build(spec()).template("retrieved").tokens
    lab.window = own + lab.size(QUESTION) + 16 + lab.size("<1>") + 64
    trace = await lab.run(spec(top=2, order="text"), answer, context, QUESTION)
    assert (trace.retrieved, trace.notes) == ([3], {"retrieved_without_room": 1})
    assert trace.last.completion.prompt_tokens + 16 == lab.window


def test_okapi_scores_are_those_of_the_formula_with_its_floor() -> None:
    windows = [["keeper", "a"], ["keeper", "b"], ["keeper", "live"]]
    common, rare = math.log(0.5) - math.log(3.5), math.log(2.5) - math.log(1.5)
    floor = 0.25 * (common + 3 * rare) / 4
    assert floor < 0, "three words of four are rare and the mean is still below zero"
    term = 2.5 / (1 + 1.5)
    wanted = [floor * term, floor * term, (floor + 2 * rare) * term]
    assert okapi(["live", "keeper", "live", "nowhere"], windows).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(("said", "notes"), [("", {"answer_empty": True}), ("a b c", {"answer_cut_off": True})])
async def test_the_trace_says_of_an_answer_that_it_is_empty_or_cut_off(lab: Any, said: str, notes: Any) -> None:
    trace = await lab.run(spec(answer_tokens=2), lambda key, prompt: said, lab.chunks("a fox"), QUESTION)
    assert (trace.status, trace.notes) == ("answered", notes)
