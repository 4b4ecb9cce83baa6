# SPDX-License-Identifier: Apache-2.0
"""The authorizer: ACLs (acls.py), decisions (authorizer.py), and the checks of each API (checks.py, with the steps in
checked_request.py and steps.py). The APIs that list and change ACLs are in admin/acls.py."""
