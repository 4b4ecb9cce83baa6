# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL of a client. `Security` is made from options and used by connections (docs/security.md).

    option_names.py  the options of each mechanism     options.py      Security: which options may be combined
    tls.py           contexts and error texts          sasl.py         the authentication flow; PLAIN
    mechanisms.py    one class for each mechanism      scram.py        SCRAM
    oauthbearer.py   OAUTHBEARER: exchange and tokens  oidc.py         tokens from an OpenID provider
    kerberos.py      GSSAPI: exchange and credentials  gssapi.py       the library of Kerberos
    aws_msk_iam.py   AWS_MSK_IAM                       secret.py       values that are never shown

A client without TLS and SASL loads none of these modules.
"""

from kcodec.security.option_names import SECRET_OPTIONS, SECURITY_OPTIONS
from kcodec.security.options import Security

__all__ = ["SECRET_OPTIONS", "SECURITY_OPTIONS", "Security"]
