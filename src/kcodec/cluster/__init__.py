# SPDX-License-Identifier: Apache-2.0
"""What every client knows of a cluster: brokers, leaders, coordinators, and the requests that find them out."""
