# SPDX-License-Identifier: Apache-2.0
"""Whether the files of a log directory are what Kafka would have written, and what to do about each finding.

log_check.py walks a partition and checks single files; batches.py, indexes.py and producers.py hold the rules by
subject, and findings.py the table of codes, severities and remedies.
"""

from kcodec.log.check.log_check import TEXT_FILES, LogCheck, check_file, file_findings

__all__ = ["TEXT_FILES", "LogCheck", "check_file", "file_findings"]
