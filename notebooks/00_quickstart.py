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
# # One question over a text too long for the model
#
# PI-Mem cuts a text into chunks, reads all of them side by side against one shared memory, keeps what a chunk reports behind a
# `<check>yes</check>`, merges it into the memory, and reads again until no chunk has anything new. Then it answers from the memory alone.
#
# Here a model with a declared window of 1,536 tokens is asked about a harbour log of several thousand. One sentence of the log
# holds the answer.

# %% tags=["parameters"]
profile = "smoke"  # a profile of experiments/profiles, or the path of a YAML file
question = None  # another question; None takes the profile's
files = None  # other text files, relative to the repository; None takes the profile's

# %%
from pimem.quickstart import ask

asked = ask(profile, question=question, files=files)

# %% [markdown]
# ## What every chunk said
#
# A turn shows one mark a chunk: `·` nothing new, `#` new evidence, `?` no readable check. Under it stands what was selected, where it
# stood in the text, and the memory the merge made of it.

# %%
print(asked.as_text())

# %% [markdown]
# ## Only the answer
#
# What `pimem ask` prints without `--show-trace`: the answer, each piece of evidence with the turn, chunk, file and line it came from, and
# what it cost. Asked again, it costs nothing: every finished call is in the run store.

# %%
print(asked.as_text(show_trace=False))
