# SPDX-License-Identifier: Apache-2.0
"""The state of a cluster that every client knows: brokers, leaders and coordinators, and the requests that find
them."""
