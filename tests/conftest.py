"""The tests run on verl's CPU platform of this package; the choice must stand before verl is first imported."""

import os

os.environ["VERL_PLATFORM"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
