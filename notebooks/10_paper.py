# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The tables and figures
#
# Everything below is made from the per-sample scores of the evaluation notebooks under one profile. The scores are stored beside the
# tables, so `pimem report` makes them again without a model. The paper's numbers stand beside ours, never among them; where model,
# data or sampling differ from the paper's, the tables say that the two are not the same experiment. Every row and column of the
# paper is there: a dash is a cell that this profile has not run.

# %% tags=["parameters"]
profile = "smoke"  # a profile of experiments/profiles, or the path of a YAML file

# %%
from pimem.report import Report

report = Report(profile)
report.scores.groupby(["task", "length", "method"], sort=False).size().rename("samples").reset_index()

# %% [markdown]
# ## How much of each table was run

# %%
print(report.coverage())

# %% [markdown]
# ## Table 1: HotpotQA by length

# %%
report.show("table1_hqa")

# %% [markdown]
# ## Table 2: RULER's eleven tasks out of distribution

# %%
report.show("table2_ood")

# %% [markdown]
# ## Table 3: LongBench v2

# %%
report.show("table3_longbench_v2")

# %% [markdown]
# ## Table 4: evidence in the final memory

# %%
report.show("table4_coverage")

# %% [markdown]
# ## Supplement, Table 3: HotpotQA with turns, and before reinforcement learning

# %%
report.show("s3_hqa")

# %% [markdown]
# ## Supplement, Table 4: RULER with turns, and before reinforcement learning

# %%
report.show("s4_ood")

# %% [markdown]
# ## Supplement, Table 5: LongBench v2 before reinforcement learning

# %%
report.show("s5_longbench_v2")

# %% [markdown]
# ## RULER task by task

# %%
report.show("ruler_by_task")

# %% [markdown]
# ## Supplement, Figure 1: HotpotQA over length

# %%
report.show("hqa_by_length")

# %% [markdown]
# ## Supplement, Figure 2: RULER over length

# %%
report.show("ood_by_length")

# %% [markdown]
# ## PI-Mem against the other methods
#
# The same questions, the same model, the same prompts: differences with their paired intervals, and McNemar's exact test where every
# score is 0 or 1 and every question was asked once.

# %%
report.comparison()

# %% [markdown]
# ## Where they are

# %%
print(report.folders())
