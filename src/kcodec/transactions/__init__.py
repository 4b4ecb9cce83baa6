# SPDX-License-Identifier: Apache-2.0
"""What a Kafka client does, as flows: generators that yield requests and are sent responses."""
