# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # LongBench v2: multiple-choice questions over real documents
#
# 503 questions over contexts of up to two million words, each with four choices, grouped by difficulty and by length (Table 3 of the
# paper, Table S5 of its supplement). The official protocol is one call over the context, cut in the middle to 120,000 tokens; the
# methods with a memory read all of it. The paper's text has PI-Mem at K = 3, its released code at K = 1 with prompts of its own: `turns`
# runs both.
#
# The data set comes with `pimem data fetch longbench_v2`, or from a file in its fields (`file`). Prompts are ours unless `prompts` names
# another set; the folder `prompts` of the benchmark's own repository is one. What was asked stands in the tables' column `prompts`.

# %% tags=["parameters"]
profile = "families"  # a profile of experiments/profiles, or the path of a YAML file
file = None  # a JSON or JSONL file in the official fields; None takes the profile's
lengths = None  # most tokens of a context; None takes the profile's
samples = None  # samples a cell; None takes the profile's
methods = None  # methods and variants compared; None takes the profile's
turns = None  # PI-Mem's K, one or several, such as [3, 1]; None takes the profile's
prompts = None  # a prompt set or a folder with one; None takes the profile's

# %%
from pimem.study import Study

tasks = {"longbench_v2": {"file": file}} if file else None
study = Study(
    "04_longbench_v2", profile, tasks=tasks, lengths=lengths, samples=samples, methods=methods, turns=turns, prompts=prompts
)
study.plan()

# %%
study.run()

# %% [markdown]
# ## Scores
#
# Accuracy is the share of right letters. A prompt set that asks for the benchmark's sentence is read by its own extraction, which counts
# every other wording as wrong; of other sets the extracted answer must be a letter. `accuracy_released` in the scores is the more
# generous reading of the authors' code. Chance is 25 %.

# %%
scores = study.scores()
study.summary(scores)

# %% [markdown]
# ## By difficulty, length and domain

# %%
study.groups(scores)

# %% [markdown]
# ## One trajectory

# %%
print(study.example("pi_mem"))
