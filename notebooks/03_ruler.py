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
# # RULER: other tasks than the training's
#
# Needles, variables that hand on a number, words to count, and SQuAD questions, from 8K to 1M tokens. The paper calls eleven of RULER's
# thirteen tasks out of distribution and reports their mean (Table 2); the other two are common words and HotpotQA.

# %% tags=["parameters"]
profile = "families"  # a profile of experiments/profiles, or the path of a YAML file
tasks = None  # task names with their parameters, such as {"squad": {}}; None takes the profile's
lengths = None  # context lengths in tokens; None takes the profile's
samples = None  # samples a cell; None takes the profile's
methods = None  # methods compared; None takes the profile's

# %%
from pimem.study import Study

study = Study("03_ruler", profile, tasks=tasks, lengths=lengths, samples=samples, methods=methods)
study.plan()

# %% [markdown]
# ## Run
#
# Finished calls are in the run store and are never made twice: run this cell again after an interruption, or with more samples, and
# only what is missing is computed.

# %%
study.run()

# %% [markdown]
# ## Scores
#
# Recall is the share of the answers asked for that the response holds; a SQuAD question has one answer and Sub-EM. Coverage is the same
# share in the final memory: where it is high and the score is low, the answer was there and not given. Intervals are 95 %, resampled by
# question. Failed samples score 0 and stay in the denominator.

# %%
scores = study.scores()
study.summary(scores)

# %% [markdown]
# ## The check signal against gold
#
# How PI-Mem's reads judged chunks that hold evidence and chunks that hold none, task by task and turn by turn. A coded text holds its
# frequent words everywhere, so there every chunk has evidence.

# %%
study.checks()

# %% [markdown]
# ## One trajectory
#
# The first sample of the first task, as PI-Mem went through it. Chunks with evidence are marked.

# %%
print(study.example("pi_mem"))
