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
# # Does the evidence survive until the answer?
#
# Four values of one key are hidden far apart in a long text, and all four are asked for. Coverage is the share of them that stands in
# the memory right before the answer: it separates what was never read or was overwritten from what was only answered badly
# (Table 4 of the paper).

# %% tags=["parameters"]
profile = "smoke"  # a profile of experiments/profiles, or the path of a YAML file
lengths = None  # context lengths in tokens; None takes the profile's
samples = None  # samples a cell; None takes the profile's
methods = None  # methods compared; None takes the profile's

# %%
from pimem.study import Study

study = Study("05_evidence", profile, lengths=lengths, samples=samples, methods=methods)
study.plan()

# %%
study.run()

# %% [markdown]
# ## Scores and coverage
#
# Recall is the share of the four values in the answer, coverage their share in the final memory (methods without a memory have none).

# %%
scores = study.scores()
study.summary(scores)

# %% [markdown]
# ## The check signal against gold
#
# How PI-Mem's reads judged chunks that hold a value and chunks that hold none, turn by turn. In turn 2 a chunk whose value is already in
# the memory should say no.

# %%
study.checks()

# %% [markdown]
# ## Where answers were lost
#
# Of every sample the first that fits: its evidence was not read (cut out, not retrieved, behind an exit), not selected, lost in the memory,
# or there and not used.

# %%
study.causes()

# %% [markdown]
# ## One trajectory

# %%
print(study.example("pi_mem"))
