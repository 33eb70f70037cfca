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
# # The tables and figures
#
# Everything below is made from the per-sample scores of the evaluation notebooks under one profile. The scores are stored beside the
# tables, so `pimem report` makes them again without a model. The paper's numbers stand beside ours, never among them; where model,
# data or sampling differ from the paper's, the tables say that the two are not the same experiment.

# %% tags=["parameters"]
profile = "smoke"  # a profile of experiments/profiles, or the path of a YAML file

# %%
from pimem.report import Report

report = Report(profile)
report.scores.groupby(["task", "length", "method"], sort=False).size().rename("samples").reset_index()

# %% [markdown]
# ## Table 1: HotpotQA by length

# %%
report.show("table1_hqa")

# %% [markdown]
# ## Table 4: evidence in the final memory

# %%
report.show("table4_coverage")

# %% [markdown]
# ## HotpotQA over length

# %%
report.show("hqa_by_length")

# %% [markdown]
# ## Where they are

# %%
print(report.folders())
