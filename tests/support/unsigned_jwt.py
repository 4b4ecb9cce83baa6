# SPDX-License-Identifier: Apache-2.0
"""An unsigned JSON Web Token with given claims."""

from __future__ import annotations

import base64
import json
from typing import Any


def jwt(claims: Any) -> str:
    parts = [json.dumps({"alg": "none"}), json.dumps(claims)]
    return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts) + ".c2ln"
