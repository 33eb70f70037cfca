"""PI-Mem: parallel iterative memory for questions over texts longer than a model's window."""

import os
import warnings

# Threads of torch wait for one another in a busy loop unless told otherwise: beside any other process on the same cores
# that makes small models tens of times slower. The OpenMP runtime reads this when torch loads, so it stands here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Progress is drawn as plain text here, so notebook widgets are not missed.
warnings.filterwarnings("ignore", message="IProgress not found")
