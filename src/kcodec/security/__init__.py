# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL of a client: `Security` is what connections use, made from options (docs/security.md).

    option_names.py  the options of each mechanism     options.py   Security itself: what is allowed together
    tls.py         contexts, and errors in words       tokens.py    when a token is fetched, and when again
    mechanisms.py  one class for each SASL mechanism   oidc.py      tokens from an OpenID provider
    loopback.py    which hosts are this machine        aws_credentials.py, aws_msk_iam.py   AWS

What is said on the wire is in `kcodec.security.sasl*`. A client without TLS and SASL loads none of it.
"""

from kcodec.security.option_names import SECRET_OPTIONS, SECURITY_OPTIONS
from kcodec.security.options import Security

__all__ = ["SECRET_OPTIONS", "SECURITY_OPTIONS", "Security"]
