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
# # HotpotQA hidden among documents
#
# Each question needs two paragraphs. They are shuffled among others of the same data set, from 50 documents (7K tokens) to 25,600
# (3.6M tokens), and every method answers the same questions at every length. This is the paper's main comparison (Table 1).

# %% tags=["parameters"]
profile = "smoke"  # a profile of experiments/profiles, or the path of a YAML file
lengths = None  # numbers of documents; None takes the profile's
samples = None  # samples a cell; None takes the profile's
methods = None  # methods compared; None takes the profile's

# %%
from pimem.study import Study

study = Study("02_hotpotqa", profile, lengths=lengths, samples=samples, methods=methods)
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
# Sub-EM is 1 where the normalised answer contains the gold answer or the other way round. Intervals are 95 %, resampled by question.
# Failed samples score 0 and stay in the denominator.

# %%
scores = study.scores()
study.summary(scores)

# %%
study.figure(scores)

# %% [markdown]
# ## Where answers were lost
#
# Of every sample the first that fits: its evidence was not read (cut out, not retrieved, behind an exit), not selected, lost in the memory,
# or there and not used.

# %%
study.causes()

# %% [markdown]
# ## One trajectory
#
# The first question, as PI-Mem went through it. Chunks with a gold paragraph are marked.

# %%
print(study.example("pi_mem"))
