# SPDX-License-Identifier: Apache-2.0
"""The APIs of administration: configurations (configs.py), partitions and cluster (cluster.py), replicas (replicas.py),
logins and credentials of users (users.py), and ACLs (acls.py)."""

from __future__ import annotations

from kcodec.broker.admin.acls import AclApis
from kcodec.broker.admin.cluster import ClusterAdminApis
from kcodec.broker.admin.configs import ConfigApis
from kcodec.broker.admin.host import AdminHost
from kcodec.broker.admin.replicas import ReplicaApis
from kcodec.broker.admin.users import UserApis
from kcodec.broker.api import Api

__all__ = ["AdminHost", "admin_apis"]


def admin_apis(core: AdminHost) -> list[Api]:
    """Return the APIs with their versions and handlers."""
    kinds = (ConfigApis, ClusterAdminApis, ReplicaApis, UserApis, AclApis)
    return [api for kind in kinds for api in kind(core).apis()]
