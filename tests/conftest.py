"""Before anything imports torch: one thread a process, for tests run side by side and threads that wait spin."""

import os

from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
