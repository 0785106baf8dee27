"""Settings for all tests: no deadlines, since machines differ; the same examples in every run of
CI.
"""

import os

from hypothesis import settings

settings.register_profile("sordino", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "sordino")
