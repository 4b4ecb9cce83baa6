# SPDX-License-Identifier: Apache-2.0
"""The authorizer: ACLs (acls.py), decisions (authorizer.py), and what each API checks (checks.py, with the steps of
checked_request.py and steps.py). admin/acls.py has the APIs that change ACLs."""
