# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL of a client: `Security` is what connections use, made from options (docs/security.md).

    option_names.py  the options of each mechanism     options.py      Security itself: what is allowed together
    tls.py           contexts, and errors in words     sasl.py         the flow that logs in; PLAIN
    mechanisms.py    one class for each mechanism      scram.py        SCRAM
    oauthbearer.py   OAUTHBEARER: exchange and tokens  oidc.py         tokens from an OpenID provider
    aws_msk_iam.py   AWS_MSK_IAM                       secret.py       values that nothing shows

A client without TLS and SASL loads none of it.
"""

from kcodec.security.option_names import SECRET_OPTIONS, SECURITY_OPTIONS
from kcodec.security.options import Security

__all__ = ["SECRET_OPTIONS", "SECURITY_OPTIONS", "Security"]
