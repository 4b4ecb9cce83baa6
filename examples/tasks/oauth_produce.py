# SPDX-License-Identifier: Apache-2.0
"""Send the lines of the standard input to brokers that accept tokens of an OpenID provider."""

import sys

from kcodec.client import ClientOptions, Producer


def main(topic: str, options: ClientOptions) -> None:
    """Send the lines, and print the offset of each."""
    with Producer(**options) as producer:
        for line in sys.stdin:
            print(producer.send_and_wait(topic, line.rstrip().encode()).offset)


if __name__ == "__main__":
    servers, topic, url, client_id, secret = sys.argv[1:]
    main(
        topic,
        {
            "bootstrap_servers": servers,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": url,
            "sasl_oauthbearer_client_id": client_id,
            "sasl_oauthbearer_client_secret": secret,
        },
    )
