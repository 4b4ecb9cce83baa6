# SPDX-License-Identifier: Apache-2.0
"""Check that the files of a log directory are what Kafka would have written, with a remedy for each finding.

log_check.py walks a partition and checks single files. batches.py, indexes.py and producers.py have the rules by
subject, findings.py the table of codes, severities and remedies.
"""

from kcodec.log.check.log_check import TEXT_FILES, LogCheck, check_file, file_findings

__all__ = ["TEXT_FILES", "LogCheck", "check_file", "file_findings"]
