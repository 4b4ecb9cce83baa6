# SPDX-License-Identifier: Apache-2.0
"""Imports of a PySpark daemon, for the Spark of the tests (the fixture `spark` puts this folder into PYTHONPATH).

Spark starts a daemon for each module that runs in workers: pyspark.worker for tasks, and others that plan. The daemon
forks a Python worker for each call, and each worker would import these packages itself, for a second. kcodec is not
among them: a worker imports it as on a cluster.
"""

import os
import sys

if "pyspark.daemon" in sys.orig_argv:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process with threads must not fork

    import pyarrow  # noqa: F401

    if sys.orig_argv[-1] == "pyspark.worker":
        import pandas  # noqa: F401
        import pyspark.sql.pandas.serializers  # noqa: F401
