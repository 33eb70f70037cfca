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
# # Training
#
# First a cold start: a rule-based teacher shows a small model what each call of a workflow should say. Then reinforcement learning over
# whole trajectories: every call of a rollout gets the advantage of its end, and a small bonus rewards fewer turns.
#
# Everything below is made from records that trainings leave behind (`experiments/training`), without a model. Set `train` to start or go on
# with a training first: a cold start or a run of reinforcement learning, by the name of its configuration; the latter needs verl, vLLM
# and a GPU.

# %% tags=["parameters"]
records = None  # folders of trainings, or of kept records; None takes all of experiments/training
train = False  # True trains first, and keeps the training's record in experiments/training
config = "mini"  # what is trained then: a configuration of pimem/training/configs, or a YAML file
out = "runs/training/mini"  # its folder; a run that is there goes on from its checkpoint
changes = {}  # fields of the configuration, such as {"reward.turn_bonus": 0, "steps": 60}

# %%
from pimem.paper import training

if train:
    print(training.train(config, out, changes))

trained = training.Training(records)
trained.overview()

# %% [markdown]
# ## Figure 6: what the turn bonus does
#
# Turns and accuracy reward of the rollouts over the steps, with a bonus of λ for fewer turns and without.

# %%
trained.figure("figure6_turn_reward")

# %%
trained.table("training_turn_bonus")

# %% [markdown]
# ## How the runs went
#
# Besides the rewards: how often a read says yes, what is out of form, cut or failed, how long memories become, and how far the weights
# have moved.

# %%
trained.figure("training_progress")

# %% [markdown]
# ## Where the time goes

# %%
trained.figure("training_step_times")

# %%
trained.table("training_times")

# %% [markdown]
# ## The cold start

# %%
trained.figure("training_cold_start")

# %% [markdown]
# ## Call by call: before, after the cold start, after reinforcement learning
#
# Held-out questions and paragraphs. A read should say yes to a section with something new that is needed, and no to all others; a merge
# should keep every fact; the answer should follow from a memory that holds all of them.

# %%
trained.figure("training_judged")

# %%
trained.table("training_cases")

# %% [markdown]
# ## Figure 4: whole workflows before and after reinforcement learning

# %%
trained.figure("figure4_before_after")

# %%
trained.table("training_workflows")

# %% [markdown]
# ## Supplement Table 1: what is trained with

# %%
trained.table("s1_training")

# %%
trained.table("training_settings")

# %% [markdown]
# ## Where they are
#
# `pimem report training` makes them again from the records.

# %%
print(trained.folders())
