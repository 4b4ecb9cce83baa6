# SPDX-License-Identifier: Apache-2.0
"""x"""


def admin_apis(core):
    return []
