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
# # When to memorise and when to stop
#
# GRU-Mem reads chunk after chunk as MemAgent does, with two gates: one keeps the memory as it is where a chunk has nothing for the
# question, the other ends the reading once everything needed has been read. This notebook measures both, as the GRU-Mem paper
# (arXiv 2602.10560) does: from the traces alone, against the places where the evidence is known to be.

# %% tags=["parameters"]
profile = "families"  # a profile of experiments/profiles, or the path of a YAML file
tasks = None  # task to its parameters; None takes the profile's
lengths = None  # context lengths; None takes the profile's
lengths_of = None  # task to lengths of its own; None takes the profile's
samples = None  # samples a cell; None takes the profile's
methods = None  # methods compared; None takes the profile's
evidence_within = None  # shares of the context in which the evidence lies, such as [1.0, 0.2, 0.1]; None takes the profile's
models = None  # models compared, the untrained one first: what to call each, and its folder; None takes the profile's

# %%
from pimem.gates import Gates

gates = Gates(
    profile,
    tasks=tasks,
    lengths=lengths,
    lengths_of=lengths_of,
    samples=samples,
    methods=methods,
    evidence_within=evidence_within,
    models=models,
)
gates.plan()

# %% [markdown]
# ## Run
#
# Finished calls are in the run store and are never made twice.

# %%
gates.run()

# %%
gates.publish()

# %% [markdown]
# ## Score and time by task
#
# MemAgent, GRU-Mem with its exit gate off, and with both gates: Table 1 of the GRU-Mem paper.

# %%
gates.show("gates_by_task")

# %% [markdown]
# What that paper prints is another experiment: its own models, machines, prompts and samples.

# %%
gates.show("gates_printed")

# %% [markdown]
# ## By length, and with the evidence early
#
# Where all evidence stands in the first 10 % or 20 % of the context, an exit gate can save most of the reading (its Tables 2 and 4).

# %%
gates.show("gates_score_and_time")

# %% [markdown]
# ## Memory size
#
# Without an update gate a memory takes in something of every chunk (its Figure 6).

# %%
gates.show("gates_memory_by_step")

# %%
gates.show("gates_memory")

# %% [markdown]
# ## The update gate
#
# It should open for a chunk with evidence and stay shut for any other (its Figures 8a and 8b).

# %%
gates.show("gates_right_updates")

# %%
gates.show("gates_updates")

# %% [markdown]
# ## The exit gate
#
# It should end the reading at the chunk with the last evidence (its Figures 7 and 21 to 23). Where it is switched off, its word is still in
# the trace.

# %%
gates.show("gates_exit_positions")

# %%
gates.show("gates_exits")

# %% [markdown]
# ## Training against none
#
# The same prompts before and after reinforcement learning (its Figure 9), for as many models as were named.

# %%
gates.show("gates_models")

# %% [markdown]
# ## The weight of the trajectory
#
# Alpha weighs the advantage of the whole trajectory against that of single updates (its Figure 8). From the records of trainings of GRU-Mem
# in `experiments/training`.

# %%
gates.show("gates_alpha")

# %%
gates.show("gates_alpha_curves")

# %% [markdown]
# ## Where they are

# %%
print(gates.folders())
